"""4-bit linear layers equal the float32 product with the dequantised weights, in every kernel (SPEC AT-06, QZ-01)."""

import pytest
import torch
import triton
import triton.language as tl

from inference_core.triton_kernels.int4_linear import DENSE_ROWS, int4_dequantize, int4_linear, pairs
from inference_core.triton_kernels.reference import dequantized_int4
from inference_core.triton_kernels.weights import Int4Tile, Int4Weight, choose_int4_tile, pack_int4
from tests.inference_core.triton_kernels.conftest import INTERPRETED
from tests.inference_core.triton_kernels.int4_tensors import KINDS, int4_tensor

# Interpreted products of bfloat16 are wrong.
DTYPES = [torch.float16] if INTERPRETED else [torch.float16, torch.bfloat16]
HALF_ULP = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
SENTINEL = 7.0
# Scales meet sums in float32; for many rows they meet weights, which are then rounded to the activations' dtype.
FLOAT32_SUMS = 2.0**-19


def weight_of(kind: str, outputs: int, inputs: int, device: torch.device) -> Int4Weight:
    return Int4Weight.load(pack_int4(int4_tensor(kind, outputs, inputs)), inputs, device)


def check(
    weight: Int4Weight,
    rows: int,
    dtype: torch.dtype,
    *,
    tile: Int4Tile | None = None,
    bias: bool = False,
    accumulate: bool = False,
) -> None:
    """Rows and columns outside the result, and those of x, must not change."""
    device, outputs, inputs = weight.codes.device, weight.out_features, weight.in_features
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, inputs + 8, generator=generator).to(dtype).to(device)[:, :inputs]
    b = torch.randn(outputs, generator=generator).to(dtype).to(device) if bias else None
    wide = torch.full((rows + 1, outputs + 8), SENTINEL, dtype=dtype, device=device)
    before = torch.randn(rows, outputs, generator=generator).to(dtype).to(device)
    out = wide[:rows, :outputs]
    out.copy_(before)

    int4_linear(x, weight.codes, weight.scales, weight.offsets, b, out, accumulate=accumulate, tile=tile)

    dense = dequantized_int4(weight.codes, weight.scales, weight.offsets, inputs).double()
    expected = x.double() @ dense.T + (0 if b is None else b.double()) + (before.double() if accumulate else 0)
    magnitude = x.double().abs() @ dense.abs().T
    half_ulp = HALF_ULP[dtype]
    bound = magnitude * (FLOAT32_SUMS if rows < DENSE_ROWS else half_ulp) + half_ulp * expected.abs() + 1e-6
    if rows >= DENSE_ROWS:  # the dense library's result is rounded once more before it is added
        bound = bound + half_ulp * (magnitude + 1)
    assert ((out.double() - expected).abs() <= bound).all()
    assert (wide[rows:] == SENTINEL).all()
    assert (wide[:, outputs:] == SENTINEL).all()


@pytest.mark.parametrize("rows", [1, 5, 16, 17, 40])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_kind_of_weights_equals_the_reference(
    dtype: torch.dtype, kind: str, rows: int, device: torch.device
) -> None:
    check(weight_of(kind, 72, 512, device), rows, dtype)


def test_one_row_of_large_weights_takes_the_kernel_of_several(device: torch.device) -> None:
    assert choose_int4_tile(1, 28672, 4096) == choose_int4_tile(16, 28672, 4096)
    assert choose_int4_tile(1, 4096, 4096).rows == choose_int4_tile(1, 28672, 4096, hopper=False).rows == 1
    check(weight_of("Q4_1", 72, 512, device), 1, torch.float16, tile=Int4Tile(64, 16, warps=4, stages=3, splits=2))


@pytest.mark.parametrize("outputs", [1, 31, 32, 130])
@pytest.mark.parametrize("inputs", [32, 288, 576])
@pytest.mark.parametrize("rows", [2, 33])
def test_no_size_need_fill_a_tile_or_a_block(rows: int, inputs: int, outputs: int, device: torch.device) -> None:
    check(weight_of("Q4_1", outputs, inputs, device), rows, torch.float16)


@pytest.mark.parametrize("splits", [1, 3, 16])
@pytest.mark.parametrize("accumulate", [False, True], ids=["written", "added"])
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
def test_sums_may_be_split_in_any_number(splits: int, bias: bool, accumulate: bool, device: torch.device) -> None:
    tile = Int4Tile(32, 16, warps=4, stages=2, splits=splits)
    weight = weight_of("Q4_1", 40, 1024, device)
    check(weight, 5, torch.float16, tile=tile, bias=bias, accumulate=accumulate)


@pytest.mark.parametrize("warps", [1] if INTERPRETED else [1, 2])  # the interpreter has none
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("outputs", [8, 32])
def test_one_row_may_be_tiled_in_any_way(outputs: int, splits: int, warps: int, device: torch.device) -> None:
    weight = weight_of("Q4_1", 50, 1024, device)
    check(
        weight, 1, torch.float16, tile=Int4Tile(outputs, 1, warps, stages=1, splits=splits), bias=True, accumulate=True
    )


@pytest.mark.parametrize("accumulate", [False, True], ids=["written", "added"])
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("rows", [20, DENSE_ROWS])
def test_many_rows_take_bias_and_residual_too(rows: int, bias: bool, accumulate: bool, device: torch.device) -> None:
    check(weight_of("Q4_Z, groups of 128", 40, 512, device), rows, torch.float16, bias=bias, accumulate=accumulate)


@pytest.mark.parametrize("shape", [(16, 16), (64, 32), (128, 128)])
def test_any_tile_gives_the_result(shape: tuple[int, int], device: torch.device) -> None:
    check(weight_of("Q4_0", 100, 256, device), 70, torch.float16, tile=Int4Tile(*shape, warps=4, stages=2))


@pytest.mark.parametrize("kind", KINDS)
def test_dequantised_weights_are_those_of_the_reference(kind: str, device: torch.device) -> None:
    weight = weight_of(kind, 100, 512, device)
    dense = torch.full((60, 512), SENTINEL, device=device)
    int4_dequantize(weight.codes, weight.scales, weight.offsets, dense, first_output=30)
    expected = dequantized_int4(weight.codes, weight.scales, weight.offsets, 512)[30:90]
    torch.testing.assert_close(dense, expected, rtol=2.0**-22, atol=1e-8)


@triton.jit
def unpack_kernel(words, low, high, step, ASSEMBLY: tl.constexpr, WORDS: tl.constexpr):
    place = tl.program_id(0) * WORDS + tl.arange(0, WORDS)
    a, b = pairs(tl.load(words + place), step, low.dtype.element_ty, ASSEMBLY)
    tl.store(low + place, a)
    tl.store(high + place, b)


@pytest.mark.parametrize("assembly", [False] if INTERPRETED else [False, True])
@pytest.mark.parametrize("step", range(4))
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_pair_of_codes_is_unpacked_exactly(
    dtype: torch.dtype, step: int, assembly: bool, device: torch.device
) -> None:
    """With all other bits of a word set, and with none."""
    low, high = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
    own = (low << 4 * step) | (high << 4 * step + 16)
    others = 0xFFFFFFFF ^ (0x000F000F << 4 * step)
    words = torch.stack([own, own | others]).reshape(-1).to(torch.uint32).view(torch.int32).to(device)
    got = [torch.empty(512, dtype=dtype, device=device) for _ in range(2)]
    unpack_kernel[(4,)](words, *got, step, ASSEMBLY=assembly, WORDS=128)
    for found, codes in zip(got, (low, high), strict=True):
        assert torch.equal(found.cpu().float(), codes.reshape(-1).repeat(2).float() - 8)


def test_no_rows_are_no_work(device: torch.device) -> None:
    check(weight_of("Q4_0", 32, 256, device), 0, torch.float16)
