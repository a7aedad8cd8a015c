"""Adapters on the CPU: packed for the native kernels, and in plain torch.

Both factors are read sequentially, in tiles that fit the registers. Plain torch is the oracle of the native kernels,
and the fallback without a compiler.
"""

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from inference_core.io.files import prefer_huge_pages
from inference_core.loaders.packed_tensor import PackedTensor, bfloat16_to_float32, dequantize, float32_to_bfloat16
from inference_core.lora.adapter import (
    PROJECTIONS,
    Adapter,
    AdapterBank,
    AdapterTarget,
    LowRank,
    Projection,
    adapter_targets,
)
from inference_core.lora.adapter_file import read_adapter
from inference_core.model_config import ModelConfig
from inference_core.step_plan import ScheduledSequence

Storage = Literal["float32", "bfloat16"]
LANES = 16
RANK_TILE = 4
_ALIGNMENT = 64
_DTYPES: dict[Storage, np.dtype[Any]] = {"float32": np.dtype("<f4"), "bfloat16": np.dtype("<u2")}

# (A's address, B's address, inputs, outputs, rank, first output column in the projection, scale)
PackedLayer = tuple[int, int, int, int, int, int, float]


def packed_bytes(adapter: Adapter, storage: Storage) -> int:
    """Bytes of `adapter` in a slot."""
    return sum(size for layer in adapter.layers for low in layer.values() for size in _sizes(low, storage))


class PackedAdapter:
    """A packed copy of `adapter`, as numbers of type `storage`.

    A [rank, K] is stored in tiles of 4 ranks (the last one may be smaller), each [K / 16, ranks, 16] with K padded with
    zeros; B [N, rank] in panels of 16 outputs, each [rank, 16]. `layers`: per block and projection of `PROJECTIONS`,
    the layers that the adapter changes.
    """

    def __init__(self, adapter: Adapter, targets: dict[str, AdapterTarget], storage: Storage) -> None:
        self.storage = storage
        self._dtype = _DTYPES[storage]
        self._memory = mmap.mmap(-1, max(packed_bytes(adapter, storage), 1))
        prefer_huge_pages(self._memory)
        self._bytes = np.frombuffer(self._memory, np.uint8)
        self._used = 0
        self.layers: list[tuple[list[PackedLayer], ...]] = [
            tuple(
                [
                    self._layer(low, targets[name])
                    for name, low in layer.items()
                    if targets[name].projection == projection
                ]
                for projection in PROJECTIONS
            )
            for layer in adapter.layers
        ]

    def _layer(self, low: LowRank, target: AdapterTarget) -> PackedLayer:
        down = self._keep(np.concatenate([*_tiles(dequantize(low.down))]))
        up = self._keep(_panels(dequantize(low.up)))
        return (down, up, target.inputs, target.outputs, low.rank, target.column, low.scale)

    def _keep(self, values: NDArray[np.float32]) -> int:
        """The address of a copy of `values`."""
        data = (values if self.storage == "float32" else float32_to_bfloat16(values)).ravel().view(np.uint8)
        target = self._bytes[self._used : self._used + data.size]
        target[:] = data
        self._used += _aligned(data.size)
        return int(target.ctypes.data)


def _sizes(low: LowRank, storage: Storage) -> tuple[int, int]:
    width = _DTYPES[storage].itemsize
    inputs, outputs = low.down.shape[1], low.up.shape[0]
    return (_aligned(low.rank * _lanes(inputs) * width), _aligned(low.rank * _lanes(outputs) * width))


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _lanes(count: int) -> int:
    return -(-count // LANES) * LANES


def _tiles(down: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
    rank, inputs = down.shape
    padded = np.zeros((rank, _lanes(inputs)), np.float32)
    padded[:, :inputs] = down
    for first in range(0, rank, RANK_TILE):
        tile = padded[first : first + RANK_TILE]
        yield tile.reshape(len(tile), -1, LANES).swapaxes(0, 1).reshape(-1)


def _panels(up: NDArray[np.float32]) -> NDArray[np.float32]:
    outputs, rank = up.shape
    padded = np.zeros((_lanes(outputs), rank), np.float32)
    padded[:outputs] = up
    return padded.reshape(-1, LANES, rank).swapaxes(1, 2).reshape(-1)


class _Factors(NamedTuple):
    """float32 A [rank, inputs] and B [outputs, rank] of outputs from `column` on."""

    down: torch.Tensor
    up: torch.Tensor
    scale: float
    column: int


_Layers = list[dict[Projection, list[_Factors]]]


class AdaptedRows:
    """Which rows of a step use which adapter; adds the adapters' updates to a projection's outputs."""

    def __init__(self, groups: list[tuple[torch.Tensor, _Layers]]) -> None:
        self._groups = groups

    def add(self, layer: int, projection: Projection, x: torch.Tensor, out: torch.Tensor) -> None:
        """out[T, N] += scale * B (A x) for x float32 [T, K], in the rows of each adapter."""
        for rows, layers in self._groups:
            for factors in layers[layer].get(projection, ()):
                columns = slice(factors.column, factors.column + len(factors.up))
                out[rows, columns] += x[rows] @ factors.down.T * factors.scale @ factors.up.T


class TorchAdapterBank(AdapterBank):
    """Adapters as float32 tensors; with `storage` "bfloat16" they are rounded like the native bank's."""

    def __init__(self, config: ModelConfig, num_slots: int, storage: Storage) -> None:
        self.num_slots = num_slots
        self._config = config
        self._storage: Storage = storage
        self._installed: dict[int, _Layers] = {}

    def read(self, folder: Path) -> Adapter:
        return read_adapter(folder, self._config)

    def install(self, slot: int, adapter: Adapter) -> None:
        layers: _Layers = []
        for layer in adapter.layers:
            parts: dict[Projection, list[_Factors]] = {}
            for name, low in layer.items():
                target = adapter_targets(self._config)[name]
                factors = _Factors(self._values(low.down), self._values(low.up), low.scale, target.column)
                parts.setdefault(target.projection, []).append(factors)
            layers.append(parts)
        self._installed[slot] = layers

    def clear(self, slot: int) -> None:
        self._installed.pop(slot, None)

    def bytes_of(self, adapter: Adapter) -> int:
        return packed_bytes(adapter, "float32")

    def rows(self, sequences: list[ScheduledSequence]) -> AdaptedRows | None:
        """The adapted rows of `sequences`, concatenated; None if no sequence has an adapter.

        Raises IndexError for a slot that holds none.
        """
        by_slot: dict[int, list[int]] = {}
        row = 0
        for sequence in sequences:
            count = len(sequence.token_ids)
            if sequence.adapter >= 0:
                by_slot.setdefault(sequence.adapter, []).extend(range(row, row + count))
            row += count
        for slot in by_slot:
            if slot not in self._installed:
                raise IndexError(f"slot {slot} holds no adapter")
        return (
            AdaptedRows([(torch.tensor(r), self._installed[slot]) for slot, r in by_slot.items()]) if by_slot else None
        )

    def _values(self, tensor: PackedTensor) -> torch.Tensor:
        values = dequantize(tensor)
        if self._storage == "bfloat16":
            values = bfloat16_to_float32(float32_to_bfloat16(values))
        return torch.tensor(values)
