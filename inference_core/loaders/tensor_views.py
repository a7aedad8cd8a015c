"""Tensors of other architectures as the decoder reads them: fused ones cut, rotated numbers of a head paired half by
half, and constants of an architecture folded into its norms. Nothing is copied before a tensor is asked for."""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from inference_core.errors import ModelFileError
from inference_core.loaders.decoder_tensors import Shape
from inference_core.loaders.packed_tensor import PackedTensor, dequantize
from inference_core.model_config import ModelConfig


class View(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor that is made of rows [`first`, `first` + `count`) of the stored tensor `source` (`count` None: all), or
    of every `step`-th of them.
    """

    source: str
    first: int = 0
    count: int | None = None
    step: int = 1
    item: int | None = None
    """Take the rows of this item of the stored tensor's first axis."""
    transposed: bool = False
    """Take the rows of that item's transpose."""
    head_dim: int = 0
    """Numbers of a head."""
    rotary_dim: int = 0
    """Numbers of each head, the first ones, that are rotated, halves apart. They are moved so that number i is rotated
    with number i + head_dim / 2, as the decoder does it.
    """
    interleaved: bool = False
    """Whether the numbers that are rotated together are neighbours."""
    plus: float = 0.0
    """Added to every number, in float32."""
    times: float = 1.0
    """Then multiplied with every number, in float32."""

    @property
    def reorders(self) -> bool:
        """Whether the numbers of a head have another order in the file."""
        return self.interleaved or self.rotary_dim > 0

    def shape(self, stored: Shape) -> Shape:
        if self.item is not None:
            stored = stored[:0:-1] if self.transposed else stored[1:]
        if self.count is not None or not stored:
            return (self.count or 0, *stored[1:])
        return (len(range(self.first, stored[0], self.step)), *stored[1:])

    def of(self, tensor: PackedTensor) -> PackedTensor:
        """The view of its whole stored tensor."""
        if self.item is not None:
            return PackedTensor(tensor.kind, self.shape(tensor.shape), lambda: self._of_item(tensor.data[self.item]))
        if self.count is not None:
            tensor = _rows(tensor, slice(self.first, self.first + self.count), self.count)
        return self.moved(tensor)

    def _of_item(self, stored: NDArray[Any]) -> NDArray[Any]:
        rows = (stored.T if self.transposed else stored)[self.first :: self.step]
        return np.ascontiguousarray(rows)

    def moved(self, tensor: PackedTensor) -> PackedTensor:
        """`tensor`, which has some of the view's rows, whole heads of them where they have another order."""
        if self.reorders:
            heads = tensor.shape[0] // self.head_dim
            order = _pairs(self.head_dim) if self.interleaved else _order(self.head_dim, self.rotary_dim)
            rows = (np.arange(heads)[:, None] * self.head_dim + order).reshape(-1)
            tensor = _rows(tensor, rows, len(rows))
        if self.plus or self.times != 1.0:
            return PackedTensor("F32", tensor.shape, partial(_scaled, tensor, self.plus, self.times))
        return tensor


def views(config: ModelConfig, stored: Iterable[str], logits_divisor: float, plus: float = 0.0) -> dict[str, View]:
    """The tensors that differ from those `stored` under their names, by the decoder's names for them. `plus`: what the
    file leaves out of the weights of norms."""
    wanted: dict[str, View] = {}
    for name in stored:
        if name.endswith("norm.weight") and plus:
            wanted[name] = View(source=name, plus=plus)
        if ".block_sparse_moe." in name:
            wanted[_renamed(name)] = View(source=name)
        for suffix, cuts in _fused(config).items():
            if suffix in name:
                wanted |= {
                    name.replace(suffix, part): View(source=name, first=rows["first"], count=rows["count"])
                    for part, rows in cuts.items()
                }
    if logits_divisor != 1.0:
        wanted["model.norm.weight"] = View(source="model.norm.weight", plus=plus, times=1.0 / logits_divisor)
    if config.rope.dim not in (None, config.head_dim):
        sizes = {"head_dim": config.head_dim, "rotary_dim": config.rope.dim}
        for name in {*stored, *wanted}:
            if ".q_proj." in name or ".k_proj." in name:
                wanted[name] = msgspec.structs.replace(wanted.get(name, View(source=name)), **sizes)
    return wanted


def check_fused(path: Path, config: ModelConfig, stored: Mapping[str, Shape]) -> None:
    """Raise ModelFileError for a fused projection whose rows are not those that the settings divide it into."""
    for suffix, cuts in _fused(config).items():
        rows = sum(cut["count"] for cut in cuts.values())
        for name, shape in stored.items():
            if suffix in name and shape[:1] != (rows,):
                raise ModelFileError(
                    f"{path}: tensor '{name}' has shape {shape}; num_attention_heads, num_key_value_heads, head_dim "
                    f"and intermediate_size of config.json give it {rows} rows"
                )


def _renamed(name: str) -> str:
    """Qwen's name for a tensor of Mixtral's experts."""
    name = name.replace(".block_sparse_moe.", ".mlp.")
    for stored, part in ((".w1.", ".gate_proj."), (".w2.", ".down_proj."), (".w3.", ".up_proj.")):
        name = name.replace(stored, part)
    return name


_OF_ALL_EXPERTS = {
    f"{stored}{leaf}": projections
    for stored, projections in (("gate_up_proj", ("gate_proj", "up_proj")), ("down_proj", ("down_proj",)))
    for leaf in ("", "_bias")
}


def gpt_oss_views(config: ModelConfig, stored: Mapping[str, Shape]) -> dict[str, View]:
    """Of gpt-oss's folders: the router under Qwen's name, and the parts of tensors that have all experts' weights or
    biases: weights are stored [inputs, outputs], and outputs of gate and up take turns."""
    if config.architecture != "gpt_oss":
        return {}
    return dict(pair for name, shape in stored.items() for pair in _gpt_oss(config, name, shape))


def _gpt_oss(config: ModelConfig, name: str, shape: Shape) -> Iterator[tuple[str, View]]:
    if ".mlp.router." in name:
        yield name.replace(".mlp.router.", ".mlp.gate."), View(source=name)
    layer, separator, part = name.partition(".mlp.experts.")
    if not separator or part not in _OF_ALL_EXPERTS or not shape:
        return
    leaf, weight = ("bias", False) if part.endswith("_bias") else ("weight", True)
    projections = _OF_ALL_EXPERTS[part]
    # One more than there should be is seen as a tensor too many.
    for expert in range(min(shape[0], config.num_experts + 1)):
        for first, projection in enumerate(projections):
            yield (
                f"{layer}{separator}{expert}.{projection}.{leaf}",
                View(source=name, item=expert, first=first, step=len(projections), transposed=weight),
            )


def _fused(config: ModelConfig) -> Mapping[str, Mapping[str, dict[str, int]]]:
    """Fused projections, and which rows of them are whose (Phi-3)."""
    if config.architecture != "phi3":
        return {}
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    inner = config.intermediate_size
    return {
        ".qkv_proj.": {
            ".q_proj.": {"first": 0, "count": query},
            ".k_proj.": {"first": query, "count": key},
            ".v_proj.": {"first": query + key, "count": key},
        },
        ".gate_up_proj.": {".gate_proj.": {"first": 0, "count": inner}, ".up_proj.": {"first": inner, "count": inner}},
    }


def _order(head_dim: int, rotary_dim: int) -> NDArray[np.int64]:
    """The stored number of each number of a head: the halves that are rotated begin the halves of the head."""
    half, rotated = head_dim // 2, rotary_dim // 2
    still = np.arange(rotary_dim, head_dim)
    first = np.concatenate([np.arange(rotated), still[: half - rotated]])
    second = np.concatenate([np.arange(rotated, rotary_dim), still[half - rotated :]])
    return np.concatenate([first, second])


def _pairs(head_dim: int) -> NDArray[np.int64]:
    """The stored number of each number of a head whose neighbours are rotated together."""
    return np.arange(head_dim).reshape(-1, 2).T.reshape(-1)


def _rows(tensor: PackedTensor, rows: slice | NDArray[np.int64], count: int) -> PackedTensor:
    def taken() -> NDArray[Any]:
        data = tensor.data[rows]
        data.flags.writeable = False
        return data

    return PackedTensor(tensor.kind, (count, *tensor.shape[1:]), taken)


def _scaled(tensor: PackedTensor, plus: float, times: float) -> NDArray[np.float32]:
    return (dequantize(tensor) + np.float32(plus)) * np.float32(times)
