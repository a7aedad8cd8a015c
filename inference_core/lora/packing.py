"""Adapters laid out as the native kernels read them: both factors from end to end, in tiles that fit the registers."""

import mmap
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from inference_core.io.huge_pages import prefer_huge_pages
from inference_core.loaders.packed_tensor import dequantize, float32_to_bfloat16
from inference_core.lora.adapter import PROJECTIONS, Adapter, AdapterTarget, LowRank

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
    """`adapter` in memory of its own, as `storage` numbers.

    A [rank, K] lies in tiles of 4 ranks (the last of what is left), in each [K / 16, ranks, 16], K filled up with
    zeros; B [N, rank] in panels of 16 outputs, each [rank, 16]. `layers`: per block, per projection of `PROJECTIONS`,
    the layers of it that the adapter changes.
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
    return (
        _aligned(low.rank * _lanes(inputs) * width),
        _aligned(low.rank * _lanes(outputs) * width),
    )


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
