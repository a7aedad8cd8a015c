"""What a model's headers say, read from a hub on loopback, is what its whole files say; its weights stay there."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

from inference_core.errors import ModelFileError
from inference_core.loaders import hub_model
from inference_core.loaders.gguf_format.gguf_header import GGUFHeader
from inference_core.loaders.hub_headers import FIRST_PIECE, LARGEST_PIECE, HubHeaders, fetch_headers
from inference_core.loaders.hub_model import HubModel
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.tokenization.load_tokenizer import load_tokenizer
from tests.inference_core.loaders.int4_checkpoints import random_model, write_packed
from tests.inference_core.loaders.model_hub import ModelHub, running_hub
from tests.inference_core.loaders.test_compressed_tensors import LAYERS, group_config, write
from tests.inference_core.quantization.tiny_model import write_tiny_model
from tests.inference_core.tiny_gguf import decoder_weights, write_gguf

REPO = "org/model"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelHub]:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(hub_model.time, "sleep", lambda seconds: None)
    with running_hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


@pytest.fixture
def fetched(tmp_path: Path) -> Callable[[], HubHeaders]:
    def fetch() -> HubHeaders:
        folder = tmp_path / "headers"
        folder.mkdir()
        return fetch_headers(HubModel(REPO), "any", folder)

    return fetch


def sharded(folder: Path) -> Path:
    config = transformers.MixtralConfig(
        vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, num_local_experts=4, num_experts_per_tok=2,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder, max_shard_size="100KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    return folder


def packed(folder: Path) -> Path:
    """compressed-tensors, whose layers' shapes are tensors."""
    layers = {}
    for name, weight in LAYERS.items():
        rows, columns = weight.shape
        layers[f"{name}.weight_packed"] = torch.ones((rows, columns // 8), dtype=torch.int32)
        layers[f"{name}.weight_scale"] = torch.ones((rows, columns // 32), dtype=torch.bfloat16)
        layers[f"{name}.weight_shape"] = torch.tensor(weight.shape, dtype=torch.int64)
    config = group_config("int", 4, "pack-quantized", strategy="group", group_size=32)
    return write(folder, layers, config)


def eight_bits(folder: Path) -> Path:
    layers = {}
    for name, weight in LAYERS.items():
        layers[f"{name}.weight"] = torch.ones(weight.shape, dtype=torch.int8)
        layers[f"{name}.weight_scale"] = torch.ones((weight.shape[0], 1))
    return write(folder, layers, group_config("int", 8, "int-quantized"))


def with_biases(folder: Path) -> Path:
    """GPTQ of Qwen2: biases belong to the architecture, but those that AutoGPTQ adds are zeros."""
    write_packed(folder, random_model(32), "gptq", 32)
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith(".qweight")]:
        layer = name.removesuffix(".qweight")
        bias = np.full(tensors[name].shape[1], 0.5 if layer.endswith(("q_proj", "k_proj", "v_proj")) else 0, np.float16)
        tensors[f"{layer}.bias"] = bias
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "qwen2"}))
    return folder


FOLDERS: dict[str, Callable[[Path], Path]] = {
    "sharded bfloat16": sharded,
    "awq": lambda folder: write_packed(folder, random_model(32), "awq", 32),
    "gptq with biases": with_biases,
    "compressed-tensors, 4 bits": packed,
    "compressed-tensors, 8 bits": eight_bits,
}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_opens_from_its_headers_as_whole(
    name: str, hub: ModelHub, fetched: Callable[[], HubHeaders], tmp_path: Path
) -> None:
    folder = FOLDERS[name](tmp_path / "whole")
    hub.add_folder(REPO, folder)
    headers = fetched()
    got, want = open_checkpoint(headers.path), open_checkpoint(folder)
    assert got.config == want.config
    assert got.stored_bytes == want.stored_bytes
    assert {n: t.shape for n, t in got.tensors.items()} == {n: t.shape for n, t in want.tensors.items()}
    kinds = {"Q4_0": "4 bits", "Q4_Z": "4 bits"}  # which of them, the zero points alone say
    for tensor, stored in want.tensors.items():
        kind = got.tensors[tensor].kind
        assert kinds.get(kind, kind) == kinds.get(stored.kind, stored.kind)
    assert headers.download_bytes == sum(file.stat().st_size for file in folder.iterdir())


@pytest.mark.parametrize("name", FOLDERS)
def test_of_safetensors_files_nothing_is_read_but_their_headers(
    name: str, hub: ModelHub, fetched: Callable[[], HubHeaders], tmp_path: Path
) -> None:
    folder = FOLDERS[name](tmp_path / "whole")
    hub.add_folder(REPO, folder)
    headers = fetched()
    for file in folder.glob("*.safetensors"):
        length = 8 + int.from_bytes(file.read_bytes()[:8], "little")
        # Writers put the 16 bytes of each layer's shape first; they are a setting.
        shapes = 16 * len(LAYERS) if name == "compressed-tensors, 4 bits" else 0
        assert hub.read(file.name) == length + shapes
    assert 0 < headers.read_bytes < headers.download_bytes / 4 * 3


def test_tensors_that_say_how_others_are_stored_are_read(
    hub: ModelHub, fetched: Callable[[], HubHeaders], tmp_path: Path
) -> None:
    layer = "model.layers.0.mlp.up_proj"
    described = {
        f"{layer}.weight.quant_state.bitsandbytes__nf4": np.arange(40, dtype=np.uint8),
        f"{layer}.weight.quant_map": np.linspace(-1, 1, 16, dtype=np.float32),
        f"{layer}.weight_shape": np.array([8, 16], np.int64),
    }
    weights = {f"{layer}.weight": np.ones((4096, 1), np.uint8), f"{layer}.weight.absmax": np.ones(64, np.float32)}
    folder = write_tiny_model(tmp_path / "whole")
    save_file(described | weights, folder / "model.safetensors")
    hub.add_folder(REPO, folder)
    read = load_file(fetched().path / "model.safetensors")
    for name, values in described.items():
        np.testing.assert_array_equal(read[name], values)
    assert not any(read[name].any() for name in weights)


def test_a_gguf_file_opens_from_its_header_and_the_factors_of_its_rotary_table(
    hub: ModelHub, fetched: Callable[[], HubHeaders], tmp_path: Path
) -> None:
    raw = {"rope_freqs.weight": ("F32", np.linspace(1, 1, 8, dtype=np.float32))}
    tokens = {f"tokenizer.ggml.{n}": ["token" * 9] * 20_000 for n in ("tokens", "merges")}
    weights = decoder_weights()
    path = write_gguf(tmp_path / "whole.gguf", weights, tokenizer=tokens, raw=raw)
    # Weights of a real model's size behind it.
    first = min(entry.offset for entry in GGUFHeader(path).tensors.values())
    hub.add(REPO, {path.name: path.read_bytes() + bytes(8 * LARGEST_PIECE)})
    assert first > 4 * FIRST_PIECE, "the header is longer than a piece"
    headers = fetched()
    got, want = open_checkpoint(headers.path), open_checkpoint(path)
    assert got.config == want.config
    assert {n: (t.shape, t.kind) for n, t in got.tensors.items()} == {
        n: (t.shape, t.kind) for n, t in want.tensors.items()
    }
    spans = [tuple(map(int, span.removeprefix("bytes=").split("-"))) for span in hub.fetched(path.name)]
    assert sum(end - begin for begin, end in spans if begin > first) < 64, "of weights: the factors alone"
    assert hub.read(path.name) <= first + LARGEST_PIECE


def test_the_tokeniser_of_the_headers_is_the_models(
    hub: ModelHub, fetched: Callable[[], HubHeaders], tmp_path: Path
) -> None:
    folder = write_tiny_model(tmp_path / "whole")
    hub.add_folder(REPO, folder)
    text = "It was the best of times"
    assert load_tokenizer(fetched().path).encode(text) == load_tokenizer(folder).encode(text)


def test_a_hub_without_ranges_is_refused_before_its_weights_come(
    hub: ModelHub, fetched: Callable[[], HubHeaders], tmp_path: Path
) -> None:
    hub.add_folder(REPO, write_tiny_model(tmp_path / "whole"))
    hub.answers_ranges = False
    with pytest.raises(ModelFileError, match="cannot be read in part"):
        fetched()


def test_a_fault_that_passes_is_tried_again(hub: ModelHub, fetched: Callable[[], HubHeaders], tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "whole")
    hub.add_folder(REPO, folder)
    hub.failures = [503]
    assert open_checkpoint(fetched().path).config == open_checkpoint(folder).config


@pytest.mark.parametrize("content", [b"GGUF\x03\0\0\0", b"GGUF\x03\0\0\0" + b"\xff" * 3 * FIRST_PIECE, b"x" * 100])
def test_a_file_that_is_no_model_is_refused(content: bytes, hub: ModelHub, fetched: Callable[[], HubHeaders]) -> None:
    hub.add(REPO, {"m-Q4_0.gguf": content})
    with pytest.raises(ModelFileError, match=r"not a GGUF file|ends early or is corrupt|at most 200000"):
        fetched()
