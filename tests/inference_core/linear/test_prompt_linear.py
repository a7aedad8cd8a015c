"""Linear layers in prompt arithmetic: the sums that TDPBF16PS defines, bit for bit, within a bound of float32."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from inference_core.linear.linear import PanelLinear
from inference_core.linear.panels import panel_kind
from inference_core.loaders.packed_tensor import dequantize, group_codes
from inference_core.model_spec import Compute
from inference_core.native import cpu
from tests.inference_core.linear.packed_linears import native, packed

pytestmark = [
    pytest.mark.skipif(not cpu.AVAILABLE, reason="the native kernels were not built (no C++ compiler)"),
    pytest.mark.usefixtures("prompt_kernels"),
]
CASES: list[tuple[str, Compute]] = [
    ("Q4_1", "int4-int8"),
    ("Q4_0", "int4-int8"),
    ("Q8_0", "int4-int8"),
    ("Q4_1", "int4"),
    ("BF16", "bfloat16"),
]
Floats = NDArray[np.float32]


@pytest.fixture
def threads() -> Iterator[None]:
    yield
    cpu.set_threads(None)


def prompt_product(layer: PanelLinear, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """x W^T + bias in prompt arithmetic; onto `out` if given."""
    accumulate = out is not None
    if out is None:
        out = torch.full((len(x), layer.out_features), torch.nan)
    cpu.linear(layer.scheme, layer.panels, x, out, layer.bias, accumulate=accumulate, prompt=True)
    return out


def weights_of(kind: str, rows: int, columns: int, compute: Compute) -> Floats:
    tensor = packed(kind, rows, columns)
    if panel_kind(tensor, compute) in ("int4", "int4-centred"):
        codes = group_codes(tensor)
        # The file's scales as the panels hold them, in float16.
        scale = codes.scale.astype(np.float16).astype(np.float32).repeat(32, axis=1)
        minimum = codes.minimum.astype(np.float16).astype(np.float32).repeat(32, axis=1)
        return (codes.codes.astype(np.float32) * scale + minimum).astype(np.float32)
    return dequantize(tensor)


def nearest_even(x: Floats) -> Floats:
    return torch.from_numpy(x).bfloat16().float().numpy()


def ties_away(x: Floats) -> Floats:
    return ((x.view(np.uint32) + np.uint32(0x8000)) & np.uint32(0xFFFF0000)).view(np.float32)


def tile_sums(x: Floats, w: Floats) -> Floats:
    """TDPBF16PS as Intel's manual defines it, one tile after another; products are exact in float64."""
    total = np.zeros((len(x), len(w)), np.float32)
    for start in range(0, x.shape[1], 32):
        halves = np.zeros((2, *total.shape), np.float32)
        for k in range(start, min(start + 32, x.shape[1])):
            product = x[:, None, k].astype(np.float64) * w[None, :, k].astype(np.float64)
            halves[k % 2] = (halves[k % 2].astype(np.float64) + product).astype(np.float32)
        total = total + (halves[0] + halves[1])
    return total


@pytest.mark.parametrize(("kind", "compute"), CASES)
@pytest.mark.parametrize(("rows", "n", "k"), [(1, 16, 32), (5, 40, 96), (16, 32, 64), (17, 48, 576), (33, 72, 96)])
def test_sums_run_in_the_order_of_the_instruction(kind: str, compute: Compute, rows: int, n: int, k: int) -> None:
    x = torch.randn(rows, k, generator=torch.Generator().manual_seed(rows))
    got = prompt_product(native(packed(kind, n, k), compute), x)
    want = tile_sums(nearest_even(x.numpy()), ties_away(weights_of(kind, n, k, compute)))
    # Scale times code plus minimum rounds once or twice, by instruction set: rarely another bfloat16.
    np.testing.assert_allclose(got.numpy(), want, rtol=0, atol=np.abs(want).max() * 2**-9)
    assert (got.numpy() == want).mean() > 0.95


def test_an_inner_dimension_that_is_no_whole_tile_is_filled_with_zeros() -> None:
    x = torch.randn(20, 54, generator=torch.Generator().manual_seed(1))
    got = prompt_product(native(packed("BF16", 24, 54), "bfloat16"), x)
    want = tile_sums(nearest_even(x.numpy()), weights_of("BF16", 24, 54, "bfloat16"))
    np.testing.assert_array_equal(got.numpy(), want)


@pytest.mark.parametrize(("kind", "compute"), CASES)
@pytest.mark.parametrize("k", [64, 576, 1536])
def test_the_error_is_that_of_its_roundings(kind: str, compute: Compute, k: int) -> None:
    """Two factors of bfloat16, each off by 2^-9 of itself at most; then in float32 16 additions in a chain, one of two
    chains and one for each tile."""
    x = torch.randn(40, k, generator=torch.Generator().manual_seed(k))
    w = weights_of(kind, 48, k, compute).astype(np.float64)
    got = prompt_product(native(packed(kind, 48, k), compute), x).numpy()
    exact, magnitude = x.double().numpy() @ w.T, x.abs().double().numpy() @ np.abs(w).T
    bound = 2**-8 + 2**-18 + (16 + 1 + k / 32) * 2**-24
    assert (np.abs(got - exact) <= bound * 1.01 * magnitude).all()


@pytest.mark.parametrize(("kind", "compute"), CASES)
def test_a_row_has_the_same_bits_alone_and_in_any_batch(kind: str, compute: Compute) -> None:
    layer, x = native(packed(kind, 80, 96), compute), torch.randn(70, 96)
    together = prompt_product(layer, x)
    for first, count in ((0, 1), (15, 2), (31, 33), (69, 1), (3, 64)):
        assert torch.equal(prompt_product(layer, x[first : first + count]), together[first : first + count])


def test_bias_and_what_was_there_are_added_and_other_columns_left_alone() -> None:
    bias = torch.randn(40)
    layer = native(packed("Q4_1", 40, 64), "int4-int8", bias)
    x, wide = torch.randn(19, 64), torch.full((19, 50), 3.0)
    plain = prompt_product(native(packed("Q4_1", 40, 64), "int4-int8"), x)
    prompt_product(layer, x, wide[:, :40])
    assert torch.equal(wide[:, :40], (plain + bias) + 3.0)
    assert torch.equal(wide[:, 40:], torch.full((19, 10), 3.0))


@pytest.mark.usefixtures("threads")
def test_the_number_of_threads_does_not_change_a_bit() -> None:
    layer, x = native(packed("Q4_0", 112, 96), "int4-int8"), torch.randn(33, 96)
    cpu.set_threads(1)
    alone = prompt_product(layer, x)
    cpu.set_threads(3)
    assert torch.equal(prompt_product(layer, x), alone)


def test_subnormal_activations_count_as_zero() -> None:
    x = torch.full((3, 32), 1e-39)
    assert torch.equal(prompt_product(native(packed("BF16", 16, 32), "bfloat16"), x), torch.zeros(3, 16))


def test_a_row_that_is_no_number_spoils_itself_alone() -> None:
    layer, x = native(packed("Q4_1", 32, 64), "int4-int8"), torch.randn(20, 64)
    want = prompt_product(layer, x)
    x[7, 3] = torch.nan
    got = prompt_product(layer, x)
    assert got[7].isnan().all()
    assert torch.equal(got[torch.arange(20) != 7], want[torch.arange(20) != 7])


def test_kernels_without_prompt_arithmetic_refuse_it() -> None:
    cpu.extension().use_instruction_set("portable")
    with pytest.raises(ValueError, match="no prompt arithmetic"):
        prompt_product(native(packed("Q4_1", 16, 32), "int4-int8"), torch.randn(1, 32))
