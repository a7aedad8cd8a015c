"""A GGUF file as a checkpoint: metadata to ModelConfig, tensors under Hugging Face names and row order."""

from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from inference_core.errors import ModelFileError
from inference_core.loaders.checkpoint import Checkpoint
from inference_core.loaders.decoder_tensors import check_config, check_tensors
from inference_core.loaders.gguf_format.ggml_blocks import BLOCK_DTYPES
from inference_core.loaders.gguf_format.gguf_config import read_config
from inference_core.loaders.gguf_format.gguf_header import GGUFHeader, TensorEntry
from inference_core.loaders.packed_tensor import PLAIN_DTYPES, Kind, PackedTensor
from inference_core.loaders.tensor_cut import cut
from inference_core.model_config import ModelConfig

_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_gate_inp": "mlp.gate",
}
# Of all experts in one tensor, whose first axis they are.
_EXPERT_NAMES = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}
_MOST_EXPERTS = 4096
KINDS = (*PLAIN_DTYPES, *BLOCK_DTYPES)
ROPE_FACTORS = "rope_freqs.weight"


class GGUFCheckpoint(Checkpoint):
    """Llama (SmolLM2 and Mistral too), Qwen2, Qwen3 and gpt-oss files with tensors of `KINDS`."""

    def __init__(self, path: Path, cache_dir: Path | None = None) -> None:
        super().__init__(path, cache_dir)
        self.header = GGUFHeader(path)
        self._entries: dict[str, TensorEntry] = {}
        for name, entry in self.header.tensors.items():
            if entry.kind not in KINDS:
                raise ModelFileError(
                    f"{path}: tensor '{name}' is of kind {entry.kind}; supported are {', '.join(KINDS)}"
                )
            if name != ROPE_FACTORS:
                self._entries |= hugging_face_entries(name, entry)
        self._config = read_config(self.header, self._rope_factors())
        check_config(path, self._config)
        check_tensors(path, self._config, {name: entry.shape for name, entry in self._entries.items()})

    @property
    def config(self) -> ModelConfig:
        return self._config

    @cached_property
    def tensors(self) -> Mapping[str, PackedTensor]:
        return _Tensors(self.header, self._entries, self._config)

    def cut(self, name: str, rows: range, columns: range | None = None) -> PackedTensor:
        """See `Checkpoint.cut`; projections with interleaved heads are cut only between heads."""
        tensors = self.tensors
        assert isinstance(tensors, _Tensors)
        heads = tensors.interleaved_heads(name)
        if not heads:
            return cut(tensors[name], rows, columns)
        stored = map_entry(self.header, self._entries[name])
        head_rows = stored.shape[0] // heads
        if rows.start % head_rows or rows.stop % head_rows:
            raise ModelFileError(f"{self.path}: rows {rows} of '{name}' split a head of {head_rows} rows")
        part = cut(stored, rows, columns)
        return PackedTensor(part.kind, part.shape, lambda: half_split_rows(part.data, len(rows) // head_rows))

    def _rope_factors(self) -> NDArray[np.float32] | None:
        entry = self.header.tensors.get(ROPE_FACTORS)
        if entry is None:
            return None
        if entry.kind != "F32":
            raise ModelFileError(f"{self.path}: tensor '{ROPE_FACTORS}' is of kind {entry.kind}; expected F32")
        return map_entry(self.header, entry).data


def hugging_face_name(name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`; an unknown name stays as it is."""
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    match name.split("."):
        case ["blk", layer, part, leaf] if part in _LAYER_NAMES:
            return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{leaf}"
    return name


def hugging_face_entries(name: str, entry: TensorEntry) -> dict[str, TensorEntry]:
    """The tensor under Hugging Face's name, or those that it has of each expert."""
    match name.split("."):
        case ["blk", layer, "attn_sinks", "weight"]:
            return {f"model.layers.{layer}.self_attn.sinks": entry}
        case ["blk", layer, part, leaf] if part in _EXPERT_NAMES and 0 < entry.shape[0] <= _MOST_EXPERTS:
            experts, size = entry.shape[0], entry.nbytes // entry.shape[0]
            return {
                f"model.layers.{layer}.mlp.experts.{e}.{_EXPERT_NAMES[part]}.{leaf}": TensorEntry(
                    name, entry.kind, entry.shape[1:], entry.offset + e * size, size
                )
                for e in range(experts)
            }
    return {hugging_face_name(name): entry}


def map_entry(header: GGUFHeader, entry: TensorEntry) -> PackedTensor:
    """One tensor over the mapped file, without copying."""
    kind = cast(Kind, entry.kind)
    dtype = PLAIN_DTYPES.get(kind, np.dtype(np.uint8))
    data: NDArray[Any] = np.frombuffer(header.buffer, dtype, entry.nbytes // dtype.itemsize, entry.offset)
    shape = entry.shape if kind in PLAIN_DTYPES else (*entry.shape[:-1], -1)
    return PackedTensor(kind, entry.shape, data.reshape(shape))


class _Tensors(Mapping[str, PackedTensor]):
    """Maps names to tensors, each made on access."""

    def __init__(self, header: GGUFHeader, entries: Mapping[str, TensorEntry], config: ModelConfig) -> None:
        self._header = header
        self._entries = entries
        # llama.cpp's llama architecture rotates adjacent pairs, so its converter interleaves the two halves of every
        # head's rows in q and k. The qwen architectures rotate halves, as Hugging Face does.
        self._interleaved_heads: dict[str, int] = {}
        if header.metadata.get("general.architecture") == "llama":
            self._interleaved_heads = {"self_attn.q_proj": config.num_heads, "self_attn.k_proj": config.num_kv_heads}

    def __getitem__(self, name: str) -> PackedTensor:
        tensor = map_entry(self._header, self._entries[name])
        heads = self.interleaved_heads(name)
        if heads:
            return PackedTensor(tensor.kind, tensor.shape, partial(half_split_rows, tensor.data, heads))
        return tensor

    def interleaved_heads(self, name: str) -> int:
        """How many heads the file stores with interleaved rows in the tensor `name`; 0 for any other tensor."""
        return next((heads for part, heads in self._interleaved_heads.items() if f".{part}." in name), 0)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def half_split_rows(rows: NDArray[Any], heads: int) -> NDArray[Any]:
    """Per head, rows (0, 1, 2, 3, ...) of interleaved pairs become (0, 2, ..., 1, 3, ...). A copy, read-only.

    `rows` is [heads x head_dim, ...]; whole rows move, so packed ones need no decoding.
    """
    split = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)
    split.flags.writeable = False
    return split
