"""Builds a decoder on a device from a checkpoint, one projection at a time."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from inference_core.device.device_decoder import DeviceDecoder
from inference_core.errors import ModelFileError
from inference_core.kv_cache.layout import KVLayout
from inference_core.linear.device import (
    LAYOUT,
    PACKED_PARTS,
    DenseLinear,
    DeviceScheme,
    ExpertLinear,
    device_scheme,
    load_device,
    pack_device,
    stack_experts,
)
from inference_core.linear.linear import Linear
from inference_core.loaders.checkpoint import Checkpoint
from inference_core.loaders.packed_tensor import PackedTensor, dequantize
from inference_core.loaders.weight_cache import WeightCache
from inference_core.models.transformer import StackedExperts, rotary_table
from inference_core.models.weights import EMBEDDING, Projection, fused_bias, load_layers, projections, vector
from inference_core.triton_kernels.layer_cache import LayerCache

Arrays = Mapping[str, NDArray[Any]]


def stored_linears(
    checkpoint: Checkpoint,
    scheme: DeviceScheme,
    dtype: torch.dtype,
    device: torch.device,
    cache_dir: Path,
    wanted: Iterable[Projection] | None = None,
) -> dict[str, Linear]:
    """Load the `wanted` projections of the checkpoint (None: all) under `scheme`, by name, for activations of `dtype`,
    but those of experts.

    Repacked weights are cached under `cache_dir` and later mapped from there; dense weights are read from the
    checkpoint. The vocabulary projection keeps its precision: 4 bits if its tensor has them, else dense; routers are
    dense. Raises ModelFileError for weights that cannot be repacked.
    """
    chosen = [p for p in (projections(checkpoint) if wanted is None else wanted) if expert_of(p) is None]
    return dict(_loaded(checkpoint, scheme, dtype, device, cache_dir, chosen, f"{LAYOUT}-{scheme}"))


def stored_experts(
    checkpoint: Checkpoint,
    scheme: DeviceScheme,
    dtype: torch.dtype,
    device: torch.device,
    cache_dir: Path,
    wanted: Iterable[Projection] | None = None,
) -> dict[str, ExpertLinear]:
    """Load and stack the `wanted` projections (None: all) of experts as `layers.I.experts.PART`; the rest is as for
    `stored_linears`. Host memory holds one layer's at a time. Raises ModelFileError for 8-bit schemes too."""
    chosen = [p for p in (projections(checkpoint) if wanted is None else wanted) if expert_of(p) is not None]
    if chosen and scheme not in ("dense", "int4"):
        raise ModelFileError(
            f'{checkpoint.path}: experts have no {scheme} kernel on a GPU; choose compute = "dense" or "int4"'
        )
    host, layout = torch.device("cpu"), f"{LAYOUT}-{scheme}-experts"
    loaded = _loaded(checkpoint, scheme, dtype, host, cache_dir, chosen, layout)
    stacks: dict[str, ExpertLinear] = {}
    for _, layer in groupby(loaded, key=lambda pair: pair[0].split(".experts.")[0]):
        parts: dict[str, list[Linear]] = {}
        for name, linear in layer:
            first, last = name.split(".experts.")
            parts.setdefault(f"{first}.experts.{last.split('.')[1]}", []).append(linear)
        for name, linears in parts.items():
            stacks[name] = stack_experts(linears, device, dtype)
    return stacks


def expert_of(projection: Projection) -> int | None:
    """Which expert the projection belongs to."""
    _, separator, rest = projection.name.partition(".experts.")
    return int(rest.split(".")[0]) if separator else None


def _loaded(
    checkpoint: Checkpoint,
    scheme: DeviceScheme,
    dtype: torch.dtype,
    device: torch.device,
    cache_dir: Path,
    wanted: list[Projection],
    layout: str,
) -> Iterator[tuple[str, Linear]]:
    """Load `wanted` one after another. Repacked weights are cached as `layout`."""
    chosen = {p: _scheme(_fused(checkpoint, p), scheme, p) for p in wanted}

    def build() -> Iterator[tuple[str, NDArray[Any]]]:
        for projection, own in chosen.items():
            if own != "dense":
                for name, array in pack_device(_fused(checkpoint, projection), own, dtype).items():
                    yield f"{projection.name}.{name}", array

    packed: Arrays = {}
    if any(own != "dense" for own in chosen.values()):
        packed = WeightCache(cache_dir).load_or_build(checkpoint.fingerprint, layout, build)
    for projection, own in chosen.items():
        fused = _fused(checkpoint, projection)
        if own == "dense":
            arrays: Arrays = pack_device(fused, own, dtype)
        else:
            named = {part: f"{projection.name}.{part}" for part in PACKED_PARTS}
            arrays = {part: packed[name] for part, name in named.items() if name in packed}
        bias = fused_bias(checkpoint, projection)
        yield projection.name, load_device(arrays, own, fused.shape[1], bias, device, dtype)


def load_device_decoder(
    checkpoint: Checkpoint,
    linears: Mapping[str, Linear],
    layout: KVLayout,
    arena: torch.Tensor,
    *,
    dtype: torch.dtype,
    max_context: int,
    stacks: Mapping[str, ExpertLinear] | None = None,
) -> DeviceDecoder:
    """Build the network from projections on the arena's device, activations in `dtype`. `stacks`: of experts."""
    config, device, head = checkpoint.config, arena.device, linears["head"]
    return DeviceDecoder(
        config=config,
        dtype=dtype,
        embedding=device_embedding(checkpoint, head, dtype, device),
        layers=load_layers(checkpoint, linears, device, stacks),
        caches=[LayerCache(arena, layout, i) for i in range(config.num_layers)],
        final_norm=vector(checkpoint, "model.norm.weight").to(device),
        head=head,
        cos_sin=rotary_table(config, max_context).to(device),
    )


def device_embedding(
    checkpoint: Checkpoint, head: Linear | None, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """[vocabulary, hidden]; shares the weights of `head` if the tables are tied and dense."""
    if checkpoint.config.tie_embeddings and isinstance(head, DenseLinear):
        return head.weight
    table = np.array(dequantize(checkpoint.tensors[EMBEDDING]), np.float32)
    return torch.from_numpy(table).to(device, dtype)


def weight_bytes(decoder: DeviceDecoder) -> int:
    """Bytes of projections and embedding on the device; a tied table counts once."""
    linears = [decoder.head, *(linear for layer in decoder.layers for linear in (layer.qkv, layer.output))]
    stacks: list[ExpertLinear] = []
    for layer in decoder.layers:
        if isinstance(layer.mlp, StackedExperts):
            linears.append(layer.mlp.router)
            stacks += [layer.mlp.gate_up, layer.mlp.down]
        else:
            linears += [layer.gate_up, layer.down]
    tensors = [t for linear in linears if linear is not None for t in _tensors(linear)]
    tables = [] if decoder.embedding is None else [decoder.embedding]
    unique = {t.data_ptr(): t.nbytes for t in [*tensors, *tables, *(t for stack in stacks for t in stack.tensors)]}
    return int(sum(unique.values()))


def _tensors(linear: Linear) -> list[torch.Tensor]:
    weight = getattr(linear, "weight", None)
    if isinstance(weight, torch.Tensor):
        return [weight]
    held = [getattr(weight, field.name) for field in fields(weight)] if weight is not None else []
    return [value for value in held if isinstance(value, torch.Tensor)]


def _scheme(tensor: PackedTensor, wanted: DeviceScheme, projection: Projection) -> DeviceScheme:
    if projection.name.endswith(".router") or (projection.name == "head" and wanted != "int4"):
        return "dense"
    return device_scheme(tensor, wanted)


def _fused(checkpoint: Checkpoint, projection: Projection) -> PackedTensor:
    """The projection's tensors stacked by rows: as they are stored, or dequantised if their kinds differ."""
    tensors = [checkpoint.tensors[name] for name in projection.tensors]
    shape = (sum(t.shape[0] for t in tensors), tensors[0].shape[1])
    if len({t.kind for t in tensors}) == 1:
        return PackedTensor(tensors[0].kind, shape, lambda: np.concatenate([t.data for t in tensors]))
    return PackedTensor("F32", shape, lambda: np.concatenate([dequantize(t) for t in tensors]))
