"""A GGUF file as a checkpoint: metadata to ModelConfig, tensors under Hugging Face names and row order.

Stacked and interleaved tensors are taken apart.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from inference_core.errors import ModelFileError
from inference_core.loaders.block_formats import BLOCK_DTYPES
from inference_core.loaders.checkpoint import Checkpoint
from inference_core.loaders.decoder_tensors import Shape, check_config, check_tensors
from inference_core.loaders.gguf_format.gguf_config import ROPE_TENSORS, logits_divisor, read_config
from inference_core.loaders.gguf_format.gguf_header import GGUFHeader, TensorEntry
from inference_core.loaders.packed_tensor import PLAIN_DTYPES, Kind, PackedTensor, cut
from inference_core.loaders.tensor_views import View, views
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
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}
_WITH_POST_NORMS = {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_OWN_NAMES = {"phi3": {"ffn_up": "mlp.gate_up_proj"}, "gpt_oss": {"post_attention_norm": "post_attention_layernorm"}}
_STACKED = ".mlp.experts."


def hugging_face_name(name: str, config: ModelConfig) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`; an unknown name stays as it is."""
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    names = _LAYER_NAMES | (_WITH_POST_NORMS if config.post_norm else {}) | _OWN_NAMES.get(config.architecture, {})
    match name.split("."):
        case ["blk", layer, "attn_sinks", "weight"]:
            return f"model.layers.{layer}.self_attn.sinks"
        case ["blk", layer, part, leaf] if part in names:
            return f"model.layers.{layer}.{names[part]}.{leaf}"
    return name


def expert_views(config: ModelConfig, stacked: Mapping[str, Shape]) -> dict[str, View]:
    """The tensors of single experts: of `stacked` matrices [experts, outputs, inputs], which lie below each other, and
    of biases [experts, outputs]."""
    views_by_name = {}
    for name, shape in stacked.items():
        for expert in range(config.num_experts):
            own = name.replace(_STACKED, f"{_STACKED}{expert}.")
            if len(shape) == 2:
                views_by_name[own] = View(source=name, item=expert)
            else:
                views_by_name[own] = View(source=name, first=expert * shape[1], count=shape[1])
    return views_by_name


def interleaved_views(config: ModelConfig, stored: Iterable[str]) -> dict[str, View]:
    """Queries and keys of the architectures whose neighbouring numbers llama.cpp rotates together: its converter
    interleaves the two halves of every head's rows."""
    return {
        name: View(source=name, head_dim=config.head_dim, interleaved=True)
        for name in stored
        if ".q_proj." in name or ".k_proj." in name
    }


KINDS = (*PLAIN_DTYPES, *BLOCK_DTYPES)


class GGUFCheckpoint(Checkpoint):
    """Files of the architectures of `gguf_config` with tensors of `KINDS`."""

    def __init__(self, path: Path, cache_dir: Path | None = None) -> None:
        super().__init__(path, cache_dir)
        self.header = GGUFHeader(path)
        for name, entry in self.header.tensors.items():
            if entry.kind not in KINDS:
                raise ModelFileError(
                    f"{path}: tensor '{name}' is of kind {entry.kind}; supported are {', '.join(KINDS)}"
                )
        factors = {name: self._factors(name) for name in ROPE_TENSORS if name in self.header.tensors}
        self._config = read_config(self.header, factors)
        check_config(path, self._config)
        entries = {
            hugging_face_name(name, self._config): entry
            for name, entry in self.header.tensors.items()
            if name not in ROPE_TENSORS
        }
        self._entries = entries
        self._views = self._all_views()
        fused = {view.source for view in self._views.values()} - self._views.keys()
        shapes = {name: _matrix(entry) for name, entry in entries.items()}
        changed = {name: view.shape(shapes[view.source]) for name, view in self._views.items()}
        check_tensors(path, self._config, {n: s for n, s in shapes.items() if n not in fused} | changed)

    @property
    def config(self) -> ModelConfig:
        return self._config

    @cached_property
    def tensors(self) -> Mapping[str, PackedTensor]:
        return _Tensors(self.header, self._entries, self._views)

    def cut(self, name: str, rows: range, columns: range | None = None) -> PackedTensor:
        """See `Checkpoint.cut`; projections whose heads have another order are cut only between heads."""
        view = self._views.get(name, View(source=name))
        stored = map_entry(self.header, self._entries[view.source])
        if view.item is not None:
            return cut(view.of(stored), rows, columns)
        if view.reorders and (rows.start % view.head_dim or rows.stop % view.head_dim):
            raise ModelFileError(f"{self.path}: rows {rows} of '{name}' split a head of {view.head_dim} rows")
        if not 0 <= rows.start <= rows.stop <= view.shape(stored.shape)[0]:
            raise ModelFileError(f"{self.path}: rows {rows} lie outside of '{name}' {view.shape(stored.shape)}")
        return view.moved(cut(stored, range(view.first + rows.start, view.first + rows.stop), columns))

    def _all_views(self) -> dict[str, View]:
        """How the decoder's tensors are made of those of the file, where they differ."""
        views_by_name = views(self._config, self._entries, logits_divisor(self.header))
        stacked = {name: entry for name, entry in self._entries.items() if _STACKED in name}
        for name, entry in stacked.items():
            axes, part = (2, "bias") if name.endswith(".bias") else (3, "matrix")
            if len(entry.shape) != axes or entry.shape[0] != self._config.num_experts:
                raise ModelFileError(
                    f"{self.path}: tensor '{entry.name}' is {entry.shape}, but {self._config.num_experts} experts"
                    f" need a {part} each"
                )
        views_by_name |= expert_views(self._config, {name: entry.shape for name, entry in stacked.items()})
        if self.header.metadata.get("general.architecture") in ("llama", "granite", "smollm3"):
            views_by_name |= interleaved_views(self._config, self._entries)
        return {name: view for name, view in views_by_name.items() if view.source in self._entries}

    def _factors(self, name: str) -> NDArray[np.float32]:
        entry = self.header.tensors[name]
        if entry.kind != "F32":
            raise ModelFileError(f"{self.path}: tensor '{name}' is of kind {entry.kind}; expected F32")
        return map_entry(self.header, entry).data


def map_entry(header: GGUFHeader, entry: TensorEntry) -> PackedTensor:
    """One tensor over the mapped file, without copying; stacked matrices as one, below each other."""
    kind, shape = cast(Kind, entry.kind), _matrix(entry)
    dtype = PLAIN_DTYPES.get(kind, np.dtype(np.uint8))
    data: NDArray[Any] = np.frombuffer(header.buffer, dtype, entry.nbytes // dtype.itemsize, entry.offset)
    return PackedTensor(kind, shape, data.reshape(shape if kind in PLAIN_DTYPES else (*shape[:-1], -1)))


def _matrix(entry: TensorEntry) -> tuple[int, ...]:
    """The shape [E x N, K] of E stacked matrices [N, K]; any other shape as it is."""
    if len(entry.shape) != 3:
        return entry.shape
    return (entry.shape[0] * entry.shape[1], entry.shape[2])


class _Tensors(Mapping[str, PackedTensor]):
    """Maps names to tensors, each made on access."""

    def __init__(self, header: GGUFHeader, entries: Mapping[str, TensorEntry], changed: Mapping[str, View]) -> None:
        self._header, self._entries, self._views = header, entries, changed
        fused = {view.source for view in changed.values()} - changed.keys()
        self._names = list(dict.fromkeys([*(name for name in entries if name not in fused), *changed]))

    def __getitem__(self, name: str) -> PackedTensor:
        view = self._views.get(name)
        tensor = map_entry(self._header, self._entries[name if view is None else view.source])
        return tensor if view is None else view.of(tensor)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
