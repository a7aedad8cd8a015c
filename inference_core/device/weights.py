"""From a checkpoint to a decoder on a device, one projection after another."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from inference_core.device.device_decoder import DeviceDecoder
from inference_core.kv_cache.layout import KVLayout
from inference_core.linear.device import DenseLinear
from inference_core.linear.device_packing import LAYOUT, DeviceScheme, device_scheme, load_device, pack_device
from inference_core.linear.linear import Linear
from inference_core.loaders.checkpoint import Checkpoint
from inference_core.loaders.packed_tensor import PackedTensor, dequantize
from inference_core.loaders.weight_cache import WeightCache
from inference_core.models.rotary import rotary_table
from inference_core.models.weights import EMBEDDING, Projection, fused_bias, load_layers, projections, vector
from inference_core.triton_kernels.attention.layer_cache import LayerCache

Arrays = Mapping[str, NDArray[Any]]


def stored_linears(
    checkpoint: Checkpoint,
    scheme: DeviceScheme,
    dtype: torch.dtype,
    device: torch.device,
    cache_dir: Path,
    wanted: Iterable[Projection] | None = None,
) -> dict[str, Linear]:
    """The `wanted` projections of the checkpoint (None: all) under `scheme`, for activations of `dtype`, by name.

    What is repacked is kept under `cache_dir` and mapped from there the next time; dense weights are read from the
    checkpoint. The vocabulary projection keeps its precision: 4 bits if its tensor has them, else dense. Raises
    ModelFileError for what cannot be repacked.
    """
    wanted = projections(checkpoint) if wanted is None else wanted
    chosen = {p: _scheme(_fused(checkpoint, p), scheme, p) for p in wanted}

    def build() -> Iterator[tuple[str, NDArray[Any]]]:
        for projection, own in chosen.items():
            if own != "dense":
                for name, array in pack_device(_fused(checkpoint, projection), own, dtype).items():
                    yield f"{projection.name}.{name}", array

    packed: Arrays = {}
    if any(own != "dense" for own in chosen.values()):
        packed = WeightCache(cache_dir).load_or_build(checkpoint.fingerprint, f"{LAYOUT}-{scheme}", build)
    linears: dict[str, Linear] = {}
    for projection, own in chosen.items():
        fused = _fused(checkpoint, projection)
        if own == "dense":
            arrays: Arrays = pack_device(fused, own, dtype)
        else:
            prefix = f"{projection.name}."
            arrays = {name.removeprefix(prefix): a for name, a in packed.items() if name.startswith(prefix)}
        linears[projection.name] = load_device(
            arrays, own, fused.shape[1], fused_bias(checkpoint, projection), device, dtype
        )
    return linears


def load_device_decoder(
    checkpoint: Checkpoint,
    linears: Mapping[str, Linear],
    layout: KVLayout,
    arena: torch.Tensor,
    *,
    dtype: torch.dtype,
    max_context: int,
) -> DeviceDecoder:
    """The network around its projections on the arena's device, activations in `dtype`."""
    config, device, head = checkpoint.config, arena.device, linears["head"]
    return DeviceDecoder(
        config=config,
        dtype=dtype,
        embedding=device_embedding(checkpoint, head, dtype, device),
        layers=load_layers(checkpoint, linears, device),
        caches=[LayerCache(arena, layout, i) for i in range(config.num_layers)],
        final_norm=vector(checkpoint, "model.norm.weight").to(device),
        head=head,
        cos_sin=rotary_table(config, max_context).to(device),
    )


def device_embedding(
    checkpoint: Checkpoint, head: Linear | None, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """[vocabulary, hidden]; the very weights of `head` where it is the same table, and dense."""
    if checkpoint.config.tie_embeddings and isinstance(head, DenseLinear):
        return head.weight
    table = np.array(dequantize(checkpoint.tensors[EMBEDDING]), np.float32)
    return torch.from_numpy(table).to(device, dtype)


def weight_bytes(decoder: DeviceDecoder) -> int:
    """Projections and embedding on the device; a table that the head shares is counted once."""
    linears = [x for layer in decoder.layers for x in (layer.qkv, layer.output, layer.gate_up, layer.down)]
    tensors = [t for linear in [*linears, decoder.head] if linear is not None for t in _tensors(linear)]
    tables = [] if decoder.embedding is None else [decoder.embedding]
    unique = {t.data_ptr(): t.nbytes for t in [*tensors, *tables]}
    return int(sum(unique.values()))


def _tensors(linear: Linear) -> list[torch.Tensor]:
    weight = getattr(linear, "weight", None)
    if isinstance(weight, torch.Tensor):
        return [weight]
    held = [getattr(weight, field.name) for field in fields(weight)] if weight is not None else []
    return [value for value in held if isinstance(value, torch.Tensor)]


def _scheme(tensor: PackedTensor, wanted: DeviceScheme, projection: Projection) -> DeviceScheme:
    if projection.name == "head" and wanted != "int4":
        return "dense"
    return device_scheme(tensor, wanted)


def _fused(checkpoint: Checkpoint, projection: Projection) -> PackedTensor:
    """The projection's tensors one above the other: as they are stored, or dequantised if their kinds differ."""
    tensors = [checkpoint.tensors[name] for name in projection.tensors]
    shape = (sum(t.shape[0] for t in tensors), tensors[0].shape[1])
    if len({t.kind for t in tensors}) == 1:
        return PackedTensor(tensors[0].kind, shape, lambda: np.concatenate([t.data for t in tensors]))
    return PackedTensor("F32", shape, lambda: np.concatenate([dequantize(t) for t in tensors]))
