"""Model files: GGUF, safetensors, tokenizer.json, adapters; a bad one is refused, and none takes much memory.

A file that opens is also served: `served_weights` asks a core that has loaded it.
"""

import contextlib
import json
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

import msgspec
import numpy as np

from inference_core.errors import InvalidRequestError, ModelFileError
from inference_core.loaders.huggingface.hf_config import read_config
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loaders.packed_tensor import dequantize
from inference_core.lora.adapter_file import read_adapter
from inference_core.model_spec import Compute, CoreSpec, ModelSpec
from inference_core.protocol import AddRequest, SamplingParams
from inference_core.tokenization.load_tokenizer import load_tokenizer
from tests.fuzz.inference_core import gguf_bytes, hf_folder
from tests.fuzz.mutations import json_mutated, mutated
from tests.fuzz.scratch import scratch_folder
from tests.hostile.target import fuzz_target
from tests.inference_core.lora.adapters import TINY, write_adapter
from tests.inference_core.tokenization.vocabularies import write_sentencepiece

MOST_ALLOCATED = 32 << 20


@contextlib.contextmanager
def bounded_memory() -> Iterator[None]:
    """Fails if the block's allocations (Python's and NumPy's) at any time pass `MOST_ALLOCATED` bytes."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MOST_ALLOCATED, f"{peak} bytes at the peak"


@bounded_memory()
def opens(path: Path) -> bool:
    """Whether the weights of the file can be read, all of them; False if it was refused as a bad file."""
    try:
        for tensor in open_checkpoint(path).tensors.values():
            with np.errstate(all="ignore"):
                assert dequantize(tensor).shape == tensor.shape
    except ModelFileError:
        return False
    return True


@bounded_memory()
def tokenises(path: Path) -> bool:
    """Whether the tokeniser of the file works; False if it was refused as a bad file."""
    try:
        tokenizer = load_tokenizer(path)
    except ModelFileError:
        return False
    tokenizer.decode(tokenizer.encode("AB and C", add_special_tokens=True))
    with contextlib.suppress(InvalidRequestError):  # A damaged template may refuse every chat.
        tokenizer.encode_chat([{"role": "user", "content": "AB"}])
    return True


def _replaced(path: Path, data: bytes) -> Path:
    path.unlink(missing_ok=True)  # A file that is mapped must not change.
    path.write_bytes(data)
    return path


@cache
def _folder(name: str) -> Path:
    return hf_folder.intact().write(scratch_folder(name))


def _gguf_files() -> list[bytes]:
    """Of tiny models of this and other architectures."""
    from tests.inference_core.loaders.test_gguf_architectures import written

    files = [gguf_bytes.intact(kind).encoded() for kind in ("F32", "Q4_0", "Q4_1", "Q8_0")]
    for name in ("mixtral", "phi4-mini", "gemma3-listed"):
        written(name, scratch_folder(name), lambda _: "Q8_0")
        files.append((scratch_folder(name) / "m.gguf").read_bytes())
    return files


_GGUF_WORDS = (
    [bytes([kind, 0, 0, 0]) for kind in range(13)] + [key.encode() for key in gguf_bytes.EXTRA_KEYS] + [b"GGUF"]
)


@fuzz_target(_gguf_files, _GGUF_WORDS, seconds=3.0, inputs=800)
def gguf(data: bytes) -> str:
    """Weights and tokeniser of a GGUF file."""
    path = _replaced(scratch_folder("gguf") / "model.gguf", data)
    return f"{opens(path)} {tokenises(path)}"


@fuzz_target([gguf_bytes.intact().encoded()], mutate=gguf_bytes.damaged, inputs=2000)
def gguf_fields(data: bytes) -> str:
    """The same, where most inputs are whole files of which a few fields hold anything."""
    return gguf.run(data) or ""


@fuzz_target(
    lambda: [write_sentencepiece(scratch_folder("spm") / "vocabulary.gguf").read_bytes()], _GGUF_WORDS, seconds=2.0
)
def gguf_vocabulary(data: bytes) -> str:
    """The tokeniser of a GGUF file."""
    return f"{tokenises(_replaced(scratch_folder('vocabulary') / 'model.gguf', data))}"


KINDS: list[tuple[str, Compute]] = [("Q4_1", "int4-int8"), ("Q8_0", "int4-int8"), ("Q4_0", "int4"), ("F32", "float32")]


@fuzz_target(
    [bytes([number]) + gguf_bytes.intact(kind).data for number, (kind, _) in enumerate(KINDS)],
    mutate=lambda data, random: data[:1] + mutated(data[1:], [], [], len(data), random),
    seconds=30.0,
    megabytes=512,
    inputs=400,
)
def served_weights(data: bytes) -> str:
    """A model whose weights hold anything, of the kind that the first byte chooses, is served: each request ends."""
    kind, compute = KINDS[data[0] % len(KINDS)] if data else KINDS[0]
    folder = scratch_folder("served")
    content = replace(gguf_bytes.intact(kind), data=data[1:]).encoded()
    try:
        ends = ends_of_requests(_replaced(folder / "m.gguf", content), compute, folder / "cache")
    except ModelFileError:
        return "refused"
    assert set(ends) <= {"stop", "length", "error"}, ends
    return f"{ends}"


def ends_of_requests(path: Path, compute: Compute, cache: Path) -> list[str | None]:
    """How two requests end on the model at `path`: greedy with log-probabilities, and seeded."""
    from inference_core.loading.load_core import load_core

    spec = ModelSpec(name="m", path=str(path), compute=compute, max_context=64)
    core = load_core(CoreSpec(models=[spec], arena_bytes=1 << 18, slab_bytes=1 << 16, threads=2), cache)
    greedy = SamplingParams(temperature=0, max_tokens=4, logprobs=2)
    seeded = SamplingParams(temperature=0.8, top_k=3, seed=1, max_tokens=4)
    for number, sampling in enumerate((greedy, seeded)):
        core.add(AddRequest(request_id=str(number), model="m", prompt_token_ids=[1, 2, 3, 4, 5], sampling=sampling))
    ends: dict[str, str | None] = {}
    for _ in range(40):
        for output in core.step():
            ends[output.request_id] = output.finish_reason
    core.check_integrity()
    assert not core.has_work
    return list(ends.values())


@fuzz_target(
    [hf_folder.intact().safetensors],
    [b'"dtype":"F32"', b'"shape":[', b'"data_offsets":[0,', b"__metadata__", b"BF16", b"F8_E4M3"],
)
def safetensors(data: bytes) -> str:
    """The weights of a Hugging Face folder."""
    _replaced(_folder("safetensors") / "model.safetensors", data)
    return f"{opens(_folder('safetensors'))}"


def _parts_mutated(data: bytes, random: Random) -> bytes:
    """Mutate the settings, the directory, or an entry or two of it. The input has a part a line."""
    settings, directory, weights = (*data.split(b"\n", 2), b"", b"")[:3]
    kind = random.randrange(6)
    if kind < 2:
        settings = json_mutated(settings, random)
    elif kind == 2:
        directory = json_mutated(directory, random)
    else:
        with contextlib.suppress(msgspec.MsgspecError):
            entries = msgspec.json.decode(directory, type=dict[str, msgspec.Raw])
            for name in random.sample(list(entries), min(len(entries), random.choice((1, 1, 2)))):
                entries[name] = msgspec.Raw(json_mutated(bytes(entries[name]), random))
            directory = msgspec.json.encode(entries)
    return b"\n".join((settings, directory, weights))


def _parts(folder: hf_folder.HFFolder) -> bytes:
    return b"\n".join((json.dumps(folder.config).encode(), json.dumps(folder.directory).encode(), folder.data))


def _read_parts(name: str, data: bytes) -> str:
    config, directory, weights = (*data.split(b"\n", 2), b"", b"")[:3]
    folder = _folder(name)
    _replaced(folder / "config.json", config)
    _replaced(folder / "model.safetensors", len(directory).to_bytes(8, "little") + directory + weights)
    return f"{opens(folder)}"


@fuzz_target(
    [_parts(hf_folder.intact())], [b'"head_dim"', b'"rope_scaling"', b'"sliding_window"'], _parts_mutated, inputs=3000
)
def folder_fields(data: bytes) -> str:
    """Settings and directory of a Hugging Face folder, of which any field holds anything."""
    return _read_parts("fields", data)


def packed_folders() -> Iterator[Path]:
    """A folder of each form in which weights are packed."""
    from tests.inference_core.loaders import bitsandbytes_checkpoints as nf4
    from tests.inference_core.loaders.int4_checkpoints import random_model, write_folder, write_packed
    from tests.inference_core.loaders.test_sparse_checkpoints import plain, sparsity
    from tests.inference_core.loaders.test_sparse_checkpoints import write as write_sparse

    layers = {name: nf4.pack(layer.weight, nested=True) for name, layer in random_model(64).layers.items()}
    parts = {f"{name}.{part}": array for name, layer in layers.items() for part, array in layer.parts.items()}
    writers: dict[str, Callable[[Path], Path]] = {
        "four": lambda folder: write_packed(folder, random_model(64, act_order=True), "gptq", 64),
        "eight": lambda folder: write_packed(folder, random_model(64, bits=8), "gptq", 64, bits=8),
        "nf4": lambda folder: write_folder(folder, random_model(64).others | parts, nf4.config()),
        "sparse": lambda folder: write_sparse(folder, plain(), sparsity("sparse-24-bitmask")),
    }
    for name, write in writers.items():
        yield write(scratch_folder(f"packed-{name}"))


def _packed_files() -> list[bytes]:
    files = []
    for folder in packed_folders():
        content = (folder / "model.safetensors").read_bytes()
        end = 8 + int.from_bytes(content[:8], "little")
        config = json.dumps(json.loads((folder / "config.json").read_bytes())).encode()
        files.append(b"\n".join((config, content[8:end], content[end:])))
    return files


@fuzz_target(
    _packed_files, [b'"bits"', b'"group_size"', b'"checkpoint_format"', b'"dynamic"'], _parts_mutated, seconds=3.0
)
def packed_layers(data: bytes) -> str:
    """Settings, directory and weights of packed layers."""
    return _read_parts("packed", data)


@fuzz_target(
    [hf_folder.TOKENIZER],
    [b'"type":"BPE"', b'"vocab"', b'"merges"', b'"normalizer"', b'"Sequence"', b'"ByteLevel"', b'"Split"'],
    json_mutated,
    seconds=2.0,
)
def tokenizer_json(data: bytes) -> str:
    """The tokeniser of a Hugging Face folder."""
    _replaced(_folder("tokenizer") / "tokenizer.json", data)
    return f"{tokenises(_folder('tokenizer'))}"


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
