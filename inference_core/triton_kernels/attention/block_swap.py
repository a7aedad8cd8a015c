"""Copies whole KV blocks between the device's arena and host memory, for preempted sequences (SPEC KV-09).

There is no kernel: blocks are large enough for the copy engines, which run in parallel with the model's kernels.
"""

from collections.abc import Sequence

import torch


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
