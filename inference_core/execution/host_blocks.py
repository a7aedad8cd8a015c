"""Host memory for the KV blocks of one model that have left the arena, in numbered slots."""

from collections import defaultdict
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from inference_core.triton_kernels.attention.block_swap import swap_blocks

_CHUNK_BYTES = 64 * 2**20


class HostBlocks:
    """Slots for blocks of `block_bytes` of `arena` uint8 [bytes], which lie at the byte `offsets` of their ids.

    Memory is taken from the system in chunks as slots are first used, and kept; where the arena is on a CUDA device it
    is pinned, so that copies are asynchronous on the current stream, in the order of the calls.
    """

    def __init__(
        self, arena: torch.Tensor, offsets: Callable[[list[int]], NDArray[np.int64]], block_bytes: int
    ) -> None:
        self._arena = arena
        self._offsets = offsets
        self._block_bytes = block_bytes
        self._slots_per_chunk = max(1, _CHUNK_BYTES // block_bytes)
        self._chunks: dict[int, torch.Tensor] = {}

    def offload(self, offloads: list[tuple[int, int]]) -> None:
        """Copy blocks to slots (block, slot)."""
        for chunk, pairs in self._by_chunk([(slot, block) for block, slot in offloads]).items():
            outward = [(at, place) for place, at in pairs]
            swap_blocks(self._arena, self._chunk(chunk), outward, self._block_bytes)

    def restore(self, restores: list[tuple[int, int]]) -> None:
        """Copy slots to blocks (slot, block). Raises KeyError for slots whose memory was never used."""
        for chunk, pairs in self._by_chunk(restores).items():
            swap_blocks(self._chunks[chunk], self._arena, pairs, self._block_bytes)

    def _by_chunk(self, pairs: list[tuple[int, int]]) -> dict[int, list[tuple[int, int]]]:
        """By chunk the byte offsets in it and in the arena of each (slot, block)."""
        offsets = self._offsets([block for _, block in pairs]).tolist()
        found: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for (slot, _), offset in zip(pairs, offsets, strict=True):
            chunk, index = divmod(slot, self._slots_per_chunk)
            found[chunk].append((index * self._block_bytes, offset))
        return found

    def _chunk(self, number: int) -> torch.Tensor:
        if number not in self._chunks:
            size = self._slots_per_chunk * self._block_bytes
            self._chunks[number] = torch.empty(size, dtype=torch.uint8, pin_memory=self._arena.is_cuda)
        return self._chunks[number]
