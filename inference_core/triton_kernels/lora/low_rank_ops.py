"""Low-rank adapters as a torch custom op: plain torch on the CPU, Triton on CUDA (SPEC AT-07, LO-01).

It adds to `out`, so that a runner's buffers keep the addresses that a CUDA graph uses. Importing this module registers
it, without triton.
"""

from typing import Any

import torch

from inference_core.triton_kernels.lora.low_rank_slots import LowRankRows, LowRankSlots
from inference_core.triton_kernels.lora.low_rank_tiles import NO_SLOT
from inference_core.triton_kernels.registration import register


def add_low_rank(out: torch.Tensor, x: torch.Tensor, slots: LowRankSlots, batch: LowRankRows) -> None:
    """Add scale * B (A x) of each row's adapter to out [T, N], for x [T, K] in the factors' dtype."""
    torch.ops.aio.add_low_rank(
        *(out, x, slots.down, slots.up, slots.scales, slots.ranks, list(slots.borders)),
        *(batch.rows, batch.tiles, batch.tile_rows),
    )


def reference_add_low_rank(out: torch.Tensor, x: torch.Tensor, slots: LowRankSlots, batch: LowRankRows) -> None:
    """The same in float32, tile by tile: the kernels' oracle, and the fallback without CUDA."""
    ranks, scales = slots.ranks.tolist(), slots.scales.tolist()
    for begin, count, slot in batch.tiles.tolist():
        if slot == NO_SLOT:
            continue
        rows = batch.rows[begin : begin + count].long()
        seen = x[rows].float()
        for part in range(len(slots.borders) - 1):
            rank, scale = ranks[slot][part], scales[slot][part]
            if not rank:
                continue
            columns = slice(slots.borders[part], slots.borders[part + 1])
            found = seen @ slots.down[slot, part, :rank].float().T * scale
            added = out[rows, columns].float() + found @ slots.up[slot, :rank, columns].float()
            out[rows, columns] = added.to(out.dtype)


def _cpu(out: torch.Tensor, x: torch.Tensor, *numbers: Any) -> None:
    reference_add_low_rank(out, x, *_slots_and_rows(*numbers))


def _cuda(out: torch.Tensor, x: torch.Tensor, *numbers: Any) -> None:
    from inference_core.triton_kernels.lora.low_rank import add_low_rank as launch

    launch(out, x, *_slots_and_rows(*numbers))


def _slots_and_rows(
    down: torch.Tensor, up: torch.Tensor, scales: torch.Tensor, ranks: torch.Tensor, borders: list[int], *rows: Any
) -> tuple[LowRankSlots, LowRankRows]:
    return LowRankSlots(down, up, scales, ranks, tuple(borders)), LowRankRows(*rows)


register(
    "add_low_rank(Tensor(a!) out, Tensor x, Tensor down, Tensor up, Tensor scales, Tensor ranks, int[] borders, "
    "Tensor rows, Tensor tiles, int tile_rows) -> ()",
    cpu=_cpu,
    cuda=_cuda,
)
