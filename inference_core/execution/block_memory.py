"""The memory of KV blocks: the arena, host memory in numbered slots, and copies between them (SPEC KV-09).

The arena is one flat run of bytes behind the blocks of every model of a core. Whole blocks are copied between it and
host memory for preempted sequences, and timed on a device. There is no kernel: blocks are large enough for the copy
engines, which run in parallel with the model's kernels. A device's blocks are read and written as bytes through
pinned host memory.
"""

import mmap
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from inference_core.errors import MemoryPlanError
from inference_core.execution.runner import BlockBytes
from inference_core.io.files import prefer_huge_pages
from inference_core.kv_cache.host_cache import SwapTimes
from inference_core.step_plan import StepPlan

# Memory that processes share gets huge pages by another switch of the system, which is mostly off.
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MADV_HUGEPAGE") else {}


def allocate_arena(num_bytes: int) -> torch.Tensor:
    """uint8 [num_bytes], taken from the system only as it is touched.

    In huge pages where the system has them: blocks are read in pieces of a few kilobytes all over the arena, and with
    small pages address translation takes longer than the reading. Raises MemoryPlanError if the system refuses.
    """
    try:
        memory = mmap.mmap(-1, num_bytes, **_PRIVATE)
    except (OSError, OverflowError, ValueError) as error:
        raise MemoryPlanError(
            f"the system gives no {num_bytes} bytes for the KV arena ({error}); make arena_bytes smaller"
        ) from error
    prefer_huge_pages(memory)
    return torch.frombuffer(memory, dtype=torch.uint8)


def swap_blocks(source: torch.Tensor, target: torch.Tensor, pairs: Sequence[tuple[int, int]], block_bytes: int) -> None:
    """Copy `block_bytes` from each pair's first byte offset in `source` to its second in `target`, uint8 [bytes] each.

    Blocks that are adjacent on both sides are copied together. Asynchronous on the current stream if one side is pinned
    host memory: wait for the stream before reading `target` on the host or freeing `source`.
    """
    for begin, end, count in _runs(pairs, block_bytes):
        size = count * block_bytes
        target[end : end + size].copy_(source[begin : begin + size], non_blocking=True)


def _runs(pairs: Sequence[tuple[int, int]], block_bytes: int) -> list[tuple[int, int, int]]:
    """(offset in source, offset in target, blocks) of each run that is contiguous on both sides."""
    runs: list[tuple[int, int, int]] = []
    for source, target in sorted(pairs):
        if runs:
            first, second, count = runs[-1]
            if (source, target) == (first + count * block_bytes, second + count * block_bytes):
                runs[-1] = (first, second, count + 1)
                continue
        runs.append((source, target, 1))
    return runs


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
            outward = [(arena_offset, chunk_offset) for chunk_offset, arena_offset in pairs]
            swap_blocks(self._arena, self._chunk(chunk), outward, self._block_bytes)

    def restore(self, restores: list[tuple[int, int]]) -> None:
        """Copy slots to blocks (slot, block). Raises KeyError for slots whose memory was never used."""
        for chunk, pairs in self._by_chunk(restores).items():
            swap_blocks(self._chunks[chunk], self._arena, pairs, self._block_bytes)

    def _by_chunk(self, pairs: list[tuple[int, int]]) -> dict[int, list[tuple[int, int]]]:
        """Return by chunk the byte offsets in it and in the arena of each (slot, block)."""
        offsets = self._offsets([block for _, block in pairs]).tolist()
        by_chunk: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for (slot, _), offset in zip(pairs, offsets, strict=True):
            chunk, index = divmod(slot, self._slots_per_chunk)
            by_chunk[chunk].append((index * self._block_bytes, offset))
        return by_chunk

    def _chunk(self, number: int) -> torch.Tensor:
        if number not in self._chunks:
            size = self._slots_per_chunk * self._block_bytes
            self._chunks[number] = torch.empty(size, dtype=torch.uint8, pin_memory=self._arena.is_cuda)
        return self._chunks[number]


class DeviceBlockBytes(BlockBytes):
    """Blocks of `arena` uint8 [bytes], at the byte `offsets` of their ids. Copies use and await the current stream."""

    def __init__(
        self, arena: torch.Tensor, offsets: Callable[[list[int]], NDArray[np.int64]], block_bytes: int
    ) -> None:
        self._arena = arena
        self._offsets = offsets
        self._block_bytes = block_bytes

    def read(self, blocks: list[int]) -> list[bytes]:
        size, staging = self._block_bytes, self._staging(len(blocks))
        pairs = [(at, number * size) for number, at in enumerate(self._offsets(blocks).tolist())]
        swap_blocks(self._arena, staging, pairs, size)
        self._wait()
        return [staging[at : at + size].numpy().tobytes() for _, at in pairs]

    def write(self, blocks: list[int], contents: list[bytes]) -> None:
        size, staging = self._block_bytes, self._staging(len(blocks))
        staging.numpy()[:] = np.frombuffer(b"".join(contents), np.uint8)
        pairs = [(number * size, at) for number, at in enumerate(self._offsets(blocks).tolist())]
        swap_blocks(staging, self._arena, pairs, size)
        self._wait()

    def _staging(self, blocks: int) -> torch.Tensor:
        return torch.empty(blocks * self._block_bytes, dtype=torch.uint8, pin_memory=self._arena.is_cuda)

    def _wait(self) -> None:
        if self._arena.is_cuda:
            torch.cuda.current_stream(self._arena.device).synchronize()


class DeviceSwaps:
    """Copies on the current stream of `device`, in order with the kernels that write and read the blocks.

    Copy engines could overlap more, but offloads must end before the step writes and restores before it reads, so only
    other sequences' work could overlap.
    """

    def __init__(self, host: HostBlocks, device: torch.device) -> None:
        self._on_cuda = device.type == "cuda"
        self._host = host

    def begin(self, plan: StepPlan) -> Callable[[], SwapTimes | None]:
        """Start the offloads and restores of `plan`. Call the result after the step for the copies' times."""
        out, back = len(plan.offloads), len(plan.restores)
        if not out and not back:
            return lambda: None
        began = self._instant()
        self._host.offload(plan.offloads)
        between = self._instant()
        self._host.restore(plan.restores)
        ended = self._instant()
        return lambda: SwapTimes(out, self._seconds(began, between), back, self._seconds(between, ended))

    def _instant(self) -> Any:
        if not self._on_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _seconds(self, begin: Any, end: Any) -> float:
        return float(begin.elapsed_time(end)) / 1e3 if self._on_cuda else float(end - begin)
