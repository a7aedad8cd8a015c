"""Moves whole KV blocks between the device's arena and host memory, for sequences that wait (SPEC KV-09).

No kernel: a block is large enough for the copy engines, which run beside the model's kernels.
"""

from collections.abc import Sequence

import torch


def swap_blocks(source: torch.Tensor, target: torch.Tensor, pairs: Sequence[tuple[int, int]], block_bytes: int) -> None:
    """Copy `block_bytes` from each pair's first byte offset in `source` to its second in `target`, uint8 [bytes] each.

    Adjacent blocks that stay adjacent go in one copy. Asynchronous on the current stream where one side is pinned host
    memory: whoever reads `target` on the host, or frees `source`, waits for the stream first.
    """
    for begin, end, count in _runs(pairs, block_bytes):
        size = count * block_bytes
        target[end : end + size].copy_(source[begin : begin + size], non_blocking=True)


def _runs(pairs: Sequence[tuple[int, int]], block_bytes: int) -> list[tuple[int, int, int]]:
    """(offset in source, offset in target, blocks) of each stretch that is contiguous on both sides."""
    runs: list[tuple[int, int, int]] = []
    for source, target in sorted(pairs):
        if runs:
            first, second, count = runs[-1]
            if (source, target) == (first + count * block_bytes, second + count * block_bytes):
                runs[-1] = (first, second, count + 1)
                continue
        runs.append((source, target, 1))
    return runs
