"""Model files: GGUF, safetensors, tokenizer.json, adapters; a bad one is refused, and none takes much memory."""

import json
from functools import cache
from pathlib import Path

from inference_core.errors import ModelFileError
from inference_core.loaders.huggingface.hf_config import read_config
from inference_core.lora.adapter_file import read_adapter
from tests.fuzz.mutations import json_mutated
from tests.fuzz.scratch import scratch_folder
from tests.fuzz.target import fuzz_target
from tests.inference_core.loaders import gguf_bytes, hf_folder
from tests.inference_core.loaders.exercise import opens, tokenises
from tests.inference_core.lora.adapters import TINY, write_adapter
from tests.inference_core.tokenization.vocabularies import write_sentencepiece


def _replaced(path: Path, data: bytes) -> Path:
    path.unlink(missing_ok=True)  # A file that is mapped must not change.
    path.write_bytes(data)
    return path


def _sentencepiece() -> bytes:
    return write_sentencepiece(scratch_folder("spm") / "vocabulary.gguf").read_bytes()


_GGUF_WORDS = (
    [bytes([kind, 0, 0, 0]) for kind in range(13)] + [key.encode() for key in gguf_bytes.EXTRA_KEYS] + [b"GGUF"]
)


@fuzz_target(
    [gguf_bytes.intact(kind).encoded()[:3000] for kind in ("F32", "Q4_0", "Q4_1", "Q8_0")]
    + [gguf_bytes.intact().encoded()],
    _GGUF_WORDS,
)
def gguf(data: bytes) -> str:
    """Weights and tokeniser of a GGUF file."""
    path = _replaced(scratch_folder("gguf") / "model.gguf", data)
    return f"{opens(path)} {tokenises(path)}"


@fuzz_target([_sentencepiece()], _GGUF_WORDS, seconds=2.0)
def gguf_vocabulary(data: bytes) -> str:
    """The tokeniser of a GGUF file."""
    return f"{tokenises(_replaced(scratch_folder('vocabulary') / 'model.gguf', data))}"


@fuzz_target(
    [hf_folder.intact().safetensors],
    [b'"dtype":"F32"', b'"shape":[', b'"data_offsets":[0,', b"__metadata__", b"BF16", b"F8_E4M3"],
)
def safetensors(data: bytes) -> str:
    """The weights of a Hugging Face folder."""
    folder = scratch_folder("safetensors")
    if not (folder / "config.json").exists():
        hf_folder.intact().write(folder)
    _replaced(folder / "model.safetensors", data)
    return f"{opens(folder)}"


@fuzz_target(
    [hf_folder.TOKENIZER],
    [b'"type":"BPE"', b'"vocab"', b'"merges"', b'"normalizer"', b'"Sequence"', b'"ByteLevel"', b'"Split"'],
    json_mutated,
    seconds=2.0,
)
def tokenizer_json(data: bytes) -> str:
    """The tokeniser of a Hugging Face folder."""
    folder = scratch_folder("tokenizer")
    if not (folder / "config.json").exists():
        hf_folder.intact().write(folder)
    _replaced(folder / "tokenizer.json", data)
    return f"{tokenises(folder)}"


@cache
def _adapter(name: str) -> Path:
    return write_adapter(scratch_folder("adapter") / name, modules=("q_proj",), layers=[0], rank=2)


@fuzz_target(
    [(_adapter("seed") / "adapter_model.safetensors").read_bytes()],
    [b"lora_A", b"layers.0", b'"shape":[2,64]', b'"F32"', b"BF16"],
)
def adapter_weights(data: bytes) -> str:
    """The tensors of a LoRA adapter."""
    folder = _adapter("weights")
    _replaced(folder / "adapter_model.safetensors", data)
    return _read_adapter(folder)


@fuzz_target(
    [(_adapter("seed") / "adapter_config.json").read_bytes()],
    [b'"r"', b'"lora_alpha"', b'"rank_pattern"', b"1e999", b"1e308"],
    json_mutated,
)
def adapter_settings(data: bytes) -> str:
    """The settings of a LoRA adapter."""
    folder = _adapter("settings")
    _replaced(folder / "adapter_config.json", data)
    return _read_adapter(folder)


def _read_adapter(folder: Path) -> str:
    try:
        return f"{len(read_adapter(folder, TINY).layers)} layers"
    except ModelFileError:
        return "refused"


@fuzz_target(
    [json.dumps(hf_folder.CONFIG).encode()],
    [b'"rope_scaling"', b'"quantization_config"', b'"model_type"', b"1e999"],
    json_mutated,
)
def model_settings(data: bytes) -> str:
    """The config.json of a Hugging Face folder."""
    folder = scratch_folder("config")
    _replaced(folder / "config.json", data)
    try:
        return read_config(folder).architecture
    except ModelFileError:
        return "refused"
