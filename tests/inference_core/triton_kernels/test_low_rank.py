"""Rows that go through different low-rank adapters equal the float32 reference, and no others are touched (LO-01)."""

import pytest
import torch

from inference_core.triton_kernels.low_rank import add_low_rank
from inference_core.triton_kernels.ops import reference_add_low_rank
from inference_core.triton_kernels.tiles import most_tiles, most_tiles_up_to, tile_rows_for
from inference_core.triton_kernels.weights import LowRankRows, LowRankSlots
from tests.inference_core.triton_kernels.low_rank_batch import rows_of, slots_of

SENTINEL = 7.0
CPU = torch.device("cpu")
# Slots of rows, -1 for none: a decode of all, a prompt with others, one adapter alone, rows without any at the ends.
MIXTURES = {
    "decodes": [0, 3, 1, -1, 2, 0, 2, 1],
    "a prompt": [1] * 37 + [0, -1] + [2] * 18,
    "one adapter": [2] * 5,
    "none at the ends": [-1, 3, 3, -1],
    "none at all": [-1] * 3,
}
BORDERS = {"one part": (0, 200), "two parts": (0, 96, 192), "three parts": (0, 130, 146, 180)}
# Of A x rounded to the dtype, and of the result.
ROUNDING = {torch.float32: 2.0**-22, torch.float16: 2.0**-10}


def check(
    slots: LowRankSlots,
    batch: LowRankRows,
    tokens: int,
    device: torch.device,
    *,
    splits: int | None = None,
) -> None:
    inputs, outputs, dtype = slots.down.shape[3], slots.borders[-1], slots.down.dtype
    generator = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, inputs, generator=generator).to(dtype)
    before = torch.randn(tokens, outputs, generator=generator).to(dtype)
    wide = torch.full((tokens + 1, outputs + 8), SENTINEL, dtype=dtype, device=device)
    out = wide[:tokens, :outputs]
    out.copy_(before)

    add_low_rank(out, x.to(device), slots, batch, splits=splits)

    expected = before.float()
    on_host = LowRankSlots(slots.down.cpu(), slots.up.cpu(), slots.scales.cpu(), slots.ranks.cpu(), slots.borders)
    reference_add_low_rank(expected, x, on_host, LowRankRows(batch.rows.cpu(), batch.tiles.cpu(), batch.tile_rows))
    # |A x| and |B| are about 1 and 40 ranks add up at most.
    bound = ROUNDING[dtype] * (expected.abs() + 40)
    assert ((out.cpu().float() - expected).abs() <= bound).all()
    untouched = [row for row in range(tokens) if row not in batch.rows.tolist()[:-3]]
    assert torch.equal(out[untouched].cpu(), before[untouched])
    assert (wide[tokens:] == SENTINEL).all()
    assert (wide[:, outputs:] == SENTINEL).all()


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("mixture", MIXTURES)
@pytest.mark.parametrize("parts", BORDERS)
def test_every_mixture_equals_the_reference(parts: str, mixture: str, dtype: torch.dtype, device: torch.device) -> None:
    given = MIXTURES[mixture]
    check(slots_of(200, BORDERS[parts], dtype, device), rows_of(given, 16, device), len(given), device)


@pytest.mark.parametrize("splits", [1, 2, 3, 8])
def test_sums_over_the_inputs_may_be_split(splits: int, device: torch.device) -> None:
    slots = slots_of(700, BORDERS["three parts"], torch.float32, device)
    check(slots, rows_of(MIXTURES["decodes"], 16, device), 8, device, splits=splits)


def test_large_tiles_serve_many_rows(device: torch.device) -> None:
    given = MIXTURES["a prompt"] * 2
    check(slots_of(64, BORDERS["two parts"], torch.float16, device), rows_of(given, 64, device), len(given), device)


@pytest.mark.parametrize("most", [1, 8, 16, 40])
@pytest.mark.parametrize("inputs", [16, 129])
def test_no_size_need_fill_a_tile(inputs: int, most: int, device: torch.device) -> None:
    slots = slots_of(inputs, (0, 1, 130, 133), torch.float32, device, most=most)
    check(slots, rows_of(MIXTURES["decodes"], 16, device), 8, device)


def test_a_step_has_as_many_tiles_as_its_rows_can_take() -> None:
    for tokens, slots in ((1, 8), (8, 8), (40, 3), (600, 8)):
        rows = tile_rows_for(tokens)
        worst = [i % slots if i < slots else 0 for i in range(tokens)]
        taken = len(rows_of(worst, rows, CPU, padding=0).tiles)
        assert taken <= most_tiles(tokens, slots) <= taken + slots
        assert most_tiles(tokens, slots) <= most_tiles_up_to(600, slots)
