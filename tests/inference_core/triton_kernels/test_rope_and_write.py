"""Norm, rotation and cache writes in one kernel equal the reference, but for roundings (SPEC AT-05, KV-07)."""

import pytest
import torch

from inference_core.kv_cache.layout import KVDtype
from inference_core.triton_kernels.cache_writes import rope_and_write
from inference_core.triton_kernels.layer_cache import LayerCache
from inference_core.triton_kernels.reference import load, reference_rope_and_write
from tests.inference_core.triton_kernels.paged_batch import PADDED_ROWS, PagedBatch

SPANS = [(20, 20), (33, 1), (16, 3)]
EPS = 1e-6
# One rounding to the activation's dtype, of numbers up to 4.
BOUND = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
# Of a cached number, relative: a last bit, since float32 sums may differ in theirs; and the smallest number of FP8.
STEP = {"float32": 1e-5, "float16": 2**-10, "bfloat16": 2**-7, "fp8": 2**-3}


def angles(head_dim: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    turns = torch.rand(64, head_dim // 2, generator=generator) * 6.3
    return torch.cat([turns.cos(), turns.sin()], dim=1)


def paged(activation: torch.dtype, cache: KVDtype, head_dim: int, device: torch.device) -> PagedBatch:
    return PagedBatch(
        SPANS,
        heads=6,
        kv_heads=2,
        head_dim=head_dim,
        activation=activation,
        cache=cache,
        device=device,
    )


def run(case: PagedBatch, norm: torch.Tensor | None, table: torch.Tensor) -> tuple[torch.Tensor, LayerCache]:
    """The rows and the cache that the kernel leaves."""
    batch, qkv, cache = case.batch(), case.on_device(case.qkv.clone()), case.cache_on_device()
    weights = None if norm is None else case.on_device(norm)
    slots = case.on_device(batch.slots)
    rope_and_write(qkv, case.on_device(table), case.on_device(batch.positions), slots, cache, weights, weights, EPS)
    return qkv.cpu(), LayerCache(cache.arena.cpu(), cache.layout, cache.layer)


def reference(case: PagedBatch, norm: torch.Tensor | None, table: torch.Tensor) -> tuple[torch.Tensor, LayerCache]:
    batch, qkv = case.batch(), case.qkv.clone()
    cache = LayerCache(case.cache.arena.clone(), case.layout, case.cache.layer)
    reference_rope_and_write(qkv, table, batch.positions, batch.slots, cache, norm, norm, EPS)
    return qkv, cache


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "q/k norm"])
@pytest.mark.parametrize("head_dim", [64, 80])
@pytest.mark.parametrize("cache", ["float32", "float16", "bfloat16", "fp8"])
@pytest.mark.parametrize("activation", BOUND, ids=str)
def test_queries_and_cache_equal_the_reference(
    activation: torch.dtype, cache: KVDtype, head_dim: int, norm: bool, device: torch.device
) -> None:
    if cache == "fp8" and device.type == "cpu":
        pytest.skip("the interpreter loses the carry when it rounds to FP8; the next test needs no rounding")
    case = paged(activation, cache, head_dim, device)
    weights = torch.linspace(0.5, 1.5, head_dim) if norm else None
    table = angles(head_dim)
    (rows, written), (want_rows, want) = run(case, weights, table), reference(case, weights, table)
    torch.testing.assert_close(rows, want_rows, atol=BOUND[activation], rtol=BOUND[activation])
    got_numbers, want_numbers = written.numbers.float(), want.numbers.float()
    torch.testing.assert_close(
        got_numbers, want_numbers, atol=2**-9 if cache == "fp8" else 1e-5, rtol=STEP[cache], equal_nan=True
    )
    if cache in ("float32", "float16"):  # the interpreter does not round the others to nearest
        assert (written.arena == want.arena).float().mean() > 0.9


@pytest.mark.parametrize("activation", BOUND, ids=str)
def test_fp8_numbers_that_need_no_rounding_are_cached_exactly(activation: torch.dtype, device: torch.device) -> None:
    """Quarter turns of numbers that E4M3 holds."""
    case = paged(activation, "fp8", 64, device)
    case.qkv = (torch.randint(-15, 16, case.qkv.shape, generator=torch.Generator().manual_seed(2)) * 0.25).to(
        activation
    )
    turns = torch.randint(0, 4, (64, 32), generator=torch.Generator().manual_seed(3)) * (torch.pi / 2)
    table = torch.cat([turns.cos(), turns.sin()], dim=1).round()
    (rows, written), (want_rows, want) = run(case, None, table), reference(case, None, table)
    assert torch.equal(rows, want_rows)
    assert torch.equal(written.arena, want.arena)


def test_only_slots_of_this_layer_are_written_and_padding_is_left_alone(device: torch.device) -> None:
    case = paged(torch.float16, "float16", 64, device)
    rows, written = run(case, None, angles(64))
    assert torch.equal(rows[-PADDED_ROWS:], case.qkv[-PADDED_ROWS:])
    changed = (written.arena != case.cache.arena).nonzero().flatten()
    batch, layout = case.batch(), case.layout
    tokens = zip(batch.slots.tolist(), batch.positions.tolist(), strict=True)
    head_bytes = layout.block_size * layout.head_dim * 2
    allowed = torch.zeros(len(written.arena), dtype=torch.bool)
    for slot, position in tokens:
        if slot < 0:
            continue
        for matrix in range(2 * layout.num_kv_heads):
            begin = slot + layout.layer_bytes + matrix * head_bytes + position % layout.block_size * layout.head_dim * 2
            allowed[begin : begin + layout.head_dim * 2] = True
    assert len(changed)
    assert allowed[changed].all()


@pytest.mark.parametrize("exponent", [-120, -30, -10, 0, 10, 30, 124])
def test_numbers_of_any_size_are_cached_in_fp8_with_all_their_bits(exponent: int, device: torch.device) -> None:
    """Numbers of four bits; E4M3 alone ends at 448, and below 2^-9."""
    case = paged(torch.float32, "fp8", 64, device)
    numbers = torch.randint(-15, 16, case.qkv.shape, generator=torch.Generator().manual_seed(4))
    case.qkv = numbers * 2.0**exponent
    unturned = torch.cat([torch.ones(64, 32), torch.zeros(64, 32)], dim=1)
    (_, written), (_, want) = run(case, None, unturned), reference(case, None, unturned)
    batch = case.batch()
    real = batch.slots >= 0
    rows = case.qkv[real].view(int(real.sum()), -1, 64)[:, -2 * case.layout.num_kv_heads :]
    cached = load(written, batch.slots[real], batch.positions[real].long() % case.layout.block_size)
    assert torch.equal(torch.cat(cached, dim=1), rows)
    assert torch.equal(written.arena, want.arena)


def test_each_tokens_heads_have_scales_of_their_own(device: torch.device) -> None:
    """So what is cached of one token does not depend on another."""
    case = paged(torch.float32, "fp8", 64, device)
    alone = run(case, None, angles(64))[1]
    case.qkv[1] *= 1e5
    together = run(case, None, angles(64))[1]
    batch, size = case.batch(), case.layout.block_size
    for row in range(24):
        place = batch.slots[row : row + 1], batch.positions[row : row + 1].long() % size
        same = [torch.equal(a, b) for a, b in zip(load(alone, *place), load(together, *place), strict=True)]
        assert same == [row != 1, row != 1], row
