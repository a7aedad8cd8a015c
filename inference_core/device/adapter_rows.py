"""Which rows of a step go through which adapter, as the device's kernels read it. No torch: arrays of numbers."""

import numpy as np
from numpy.typing import NDArray

from inference_core.step_plan import ScheduledSequence
from inference_core.triton_kernels.lora.low_rank_tiles import NO_SLOT, tile_rows_for

TILE_NUMBERS = 3


def slots_of_rows(sequences: list[ScheduledSequence], lengths: list[int]) -> NDArray[np.int32]:
    """The slot of every token of a step, one sequence after another; `NO_SLOT` without an adapter."""
    return np.repeat(np.array([s.adapter for s in sequences], np.int32), lengths)


def adapter_tiles(slots: NDArray[np.int32], tokens: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows [R] that have an adapter, those of a slot together, and tiles [M, 3] of them for a step padded to `tokens`
    (see `LowRankRows`)."""
    order = np.argsort(slots, kind="stable")
    order = order[np.searchsorted(slots[order], NO_SLOT, "right") :]
    own, firsts, counts = np.unique(slots[order], return_index=True, return_counts=True)
    size = tile_rows_for(tokens)
    of_slot = -(-counts // size)
    # How many tiles of the same slot come before each tile.
    number = np.arange(of_slot.sum()) - np.repeat(np.cumsum(of_slot) - of_slot, of_slot)
    begins = np.repeat(firsts, of_slot) + number * size
    sizes = np.minimum(np.repeat(counts, of_slot) - number * size, size)
    return order, np.stack([begins, sizes, np.repeat(own, of_slot)], axis=1)
