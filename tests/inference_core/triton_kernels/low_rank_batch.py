"""Adapters of many ranks in slots whose unused places hold no numbers, and rows that go through them."""

import torch

from inference_core.triton_kernels.tiles import NO_SLOT
from inference_core.triton_kernels.weights import LowRankRows, LowRankSlots

# By slot and part; a part without ranks is one that the adapter leaves as it is.
RANKS = [[4, 4, 4], [16, 0, 7], [1, 33, 2], [0, 0, 40]]


def slots_of(
    inputs: int, borders: tuple[int, ...], dtype: torch.dtype, device: torch.device, *, most: int = 40
) -> LowRankSlots:
    """Of `RANKS`, as far as `most` and the number of parts allow."""
    parts, outputs = len(borders) - 1, borders[-1]
    generator = torch.Generator().manual_seed(inputs + outputs)
    ranks = torch.tensor(RANKS, dtype=torch.int32).clamp(max=most)
    down = torch.full((len(RANKS), parts, most, inputs), torch.nan)
    up = torch.full((len(RANKS), most, outputs), torch.nan)
    for slot, own in enumerate(ranks.tolist()):
        for part, rank in enumerate(own[:parts]):
            begin, end = borders[part], borders[part + 1]
            down[slot, part, :rank] = torch.randn(rank, inputs, generator=generator) * inputs**-0.5
            up[slot, :rank, begin:end] = torch.randn(rank, end - begin, generator=generator)
    scales = torch.rand(len(RANKS), 3, generator=generator) + 0.5
    tensors = (down.to(dtype), up.to(dtype), scales, ranks)
    return LowRankSlots(*(t.to(device) for t in tensors), borders)


def rows_of(slot_of_row: list[int], tile_rows: int, device: torch.device, *, padding: int = 2) -> LowRankRows:
    """Rows in order of their slots; tiles without any follow, and rows beyond the last are out of bounds."""
    order: list[int] = []
    tiles: list[list[int]] = []
    for slot in sorted(set(slot_of_row) - {NO_SLOT}):
        own = [row for row, given in enumerate(slot_of_row) if given == slot]
        firsts = range(0, len(own), tile_rows)
        tiles += [[len(order) + first, min(tile_rows, len(own) - first), slot] for first in firsts]
        order += own
    tiles += [[0, 0, NO_SLOT]] * padding
    rows = torch.tensor(order + [1 << 30] * 3, dtype=torch.int32, device=device)
    return LowRankRows(rows, torch.tensor(tiles, dtype=torch.int32, device=device), tile_rows)
