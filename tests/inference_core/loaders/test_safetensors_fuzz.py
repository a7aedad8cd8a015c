"""No Hugging Face folder, however damaged, does anything worse than raise ModelFileError."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.inference_core.loaders.bitsandbytes_checkpoints import config, pack
from tests.inference_core.loaders.bounded_memory import bounded_memory
from tests.inference_core.loaders.byte_damage import damaged_bytes
from tests.inference_core.loaders.exercise import opens, tokenises
from tests.inference_core.loaders.hf_folder import CONFIG, TOKENIZER, HFFolder, damaged, intact, json_values
from tests.inference_core.loaders.int4_checkpoints import random_model, write_folder, write_packed
from tests.inference_core.loaders.test_sparse_checkpoints import plain, sparsity
from tests.inference_core.loaders.test_sparse_checkpoints import write as write_sparse

INTACT = intact()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("folder")


def test_the_folder_that_is_damaged_below_is_intact(folder: Path) -> None:
    assert opens(INTACT.write(folder))
    assert tokenises(folder)


@given(content=damaged())
def test_any_field_may_hold_anything(folder: Path, content: HFFolder) -> None:
    with bounded_memory():
        opens(content.write(folder))


@given(content=damaged_bytes(INTACT.safetensors, header=1600))
def test_any_bytes_of_the_weights_may_be_cut_changed_repeated_or_lost(folder: Path, content: bytes) -> None:
    INTACT.write(folder)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").write_bytes(content)
    with bounded_memory():
        opens(folder)


def write_bitsandbytes(folder: Path) -> Path:
    layers = {name: pack(layer.weight, nested=True) for name, layer in random_model(64).layers.items()}
    parts = {f"{name}.{part}": array for name, layer in layers.items() for part, array in layer.parts.items()}
    return write_folder(folder, random_model(64).others | parts, config())


WRITERS: dict[str, Callable[[Path], Path]] = {
    "four bits": lambda folder: write_packed(folder, random_model(64, act_order=True), "gptq", 64),
    "eight bits": lambda folder: write_packed(folder, random_model(64, bits=8), "gptq", 64, bits=8),
    "bitsandbytes": write_bitsandbytes,
    "2:4": lambda folder: write_sparse(folder, plain(), sparsity("sparse-24-bitmask")),
}
KEYS = ["quant_method", "bits", "group_size", "checkpoint_format", "load_in_4bit", "sparsity_config", "dynamic"]


@pytest.fixture(scope="module", params=sorted(WRITERS))
def packed_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return WRITERS[request.param](tmp_path_factory.mktemp("packed"))


def test_the_packed_layers_that_are_damaged_below_are_intact(packed_folder: Path) -> None:
    assert opens(packed_folder)


@settings(max_examples=max(30, settings().max_examples // 4))
@given(data=st.data())
def test_packed_layers_may_hold_anything(packed_folder: Path, folder: Path, data: st.DataObject) -> None:
    content = (packed_folder / "model.safetensors").read_bytes()
    settings_of = json.loads((packed_folder / "config.json").read_bytes())
    INTACT.write(folder)
    if data.draw(st.booleans()):
        settings_of["quantization_config"][data.draw(st.sampled_from(KEYS))] = data.draw(json_values)
    (folder / "config.json").write_text(json.dumps(settings_of))
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").write_bytes(data.draw(damaged_bytes(content, header=12000)))
    with bounded_memory():
        opens(folder)


@given(content=damaged_bytes(TOKENIZER, header=len(TOKENIZER)))
def test_any_bytes_of_the_tokeniser_may_be_cut_changed_repeated_or_lost(folder: Path, content: bytes) -> None:
    INTACT.write(folder)
    (folder / "tokenizer.json").write_bytes(content)
    with bounded_memory():
        tokenises(folder)


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 100_000,
        b'{"__metadata__": ' + b"[" * 100_000,
        b'{"a": {"dtype": "F32", "shape": [' + b"9223372036854775807, " * 500 + b'1], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [' + b"1, " * 100 + b'1], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [' + b"9" * 5000 + b'], "data_offsets": [0, 4]}}',
        b'{"\xff": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}',
        b'{"\\ud800": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}',
    ],
    ids=["deep", "deep metadata", "huge shape", "many dimensions", "huge number", "no UTF-8", "lone surrogate"],
)
def test_a_header_that_is_hostile_to_parsers_is_refused(folder: Path, header: bytes) -> None:
    INTACT.write(folder)
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with bounded_memory():
        assert not opens(folder)


@pytest.mark.parametrize("key", ["num_hidden_layers", "vocab_size", "num_attention_heads", "max_position_embeddings"])
@pytest.mark.parametrize("value", [-1, 0, 2**40, 10**30])
def test_an_absurd_count_in_the_settings_costs_no_memory(folder: Path, key: str, value: int) -> None:
    with bounded_memory():
        opens(HFFolder(CONFIG | {key: value}, INTACT.directory, INTACT.data).write(folder))


@pytest.mark.parametrize(
    "model",
    [
        {"type": "WordLevel", "vocab": {"A": 0}, "unk_token": "<unk>"},
        {"type": "BPE", "vocab": {"A": 0, "B": 1, "AB": 2}, "merges": ["A B"], "continuing_subword_prefix": "####"},
    ],
    ids=["no token for what is unknown", "a prefix longer than its tokens"],
)
def test_a_tokeniser_that_would_fail_or_panic_is_refused(folder: Path, model: dict[str, object]) -> None:
    INTACT.write(folder)
    content = json.loads(TOKENIZER) | {"model": model}
    (folder / "tokenizer.json").write_text(json.dumps(content))

    assert not tokenises(folder)
