"""Linear layers of prompts in spans of 128 inputs: the arithmetic in numpy, bit for bit, within a bound of float64."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from inference_core.linear.linear import PanelLinear
from inference_core.linear.panels import int8_codes, pack_columns, panel_kind
from inference_core.loaders.packed_tensor import PackedTensor, group_codes
from inference_core.native import cpu
from tests.inference_core.linear.packed_linears import native, packed

pytestmark = [
    pytest.mark.skipif(not cpu.AVAILABLE, reason="the native kernels were not built (no C++ compiler)"),
    pytest.mark.usefixtures("span_kernels"),
]
GROUP, SPAN = 32, 128
KINDS = ["Q4_1", "Q4_0", "Q8_0"]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Whole = NDArray[np.int64]


@pytest.fixture
def threads() -> Iterator[None]:
    yield
    cpu.set_threads(None)


def fused(a: Floats, b: Floats, c: Floats) -> Floats:
    """a * b + c, rounded once: the product is exact in float64, the sum is rounded there to odd, then to float32."""
    product, third = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    total = np.asarray(product + third)
    rest = total - product
    error = (product - (total - rest)) + (third - rest)
    bits = total.view(np.int64)
    towards = np.where((error > 0) == (total > 0), 1, -1)
    odd = np.where((error != 0) & (bits & 1 == 0), bits + towards, bits)
    return odd.view(np.float64).astype(np.float32)


class SpanWeights:
    """Codes [N, K] of -128 to 127 and steps [N, spans] as the kernel rounds a tensor's groups again."""

    def __init__(self, tensor: PackedTensor) -> None:
        rows, columns = tensor.shape
        groups, spans = columns // GROUP, -(-columns // SPAN)
        kind, minimum = panel_kind(tensor, "int4-int8"), None
        if kind == "int8":
            signed, scale = int8_codes(tensor)
            codes, centre = signed.astype(np.int64) + 128, 128
        else:
            parts = group_codes(tensor)
            codes, scale, centre = parts.codes.astype(np.int64), parts.scale, 8
            if kind == "int4":
                centre, minimum = 0, parts.minimum.astype(np.float16).astype(np.float32)
        scale = scale.astype(np.float16).astype(np.float32)
        most = np.float32(1 if centre == 128 else 127)
        peak = np.abs(scale) * np.float32({0: 0, 8: 8, 128: 1}[centre])
        if minimum is not None:
            peak = np.maximum(np.abs(minimum), np.abs(scale * np.float32(15) + minimum))
        padded = np.zeros((rows, spans * 4), np.float32)
        padded[:, :groups] = peak
        greatest = padded.reshape(rows, spans, 4).max(axis=2)
        self.steps = greatest / most
        inverse = np.divide(most * np.float32(256), greatest, out=np.zeros_like(greatest), where=greatest > 0)
        inverse = inverse.repeat(4, axis=1)[:, :groups]
        a = np.rint(scale * inverse).astype(np.int64)
        zero = 128 * 256 + 128
        b = zero - centre * a if minimum is None else np.rint(minimum * inverse).astype(np.int64) + zero
        lanes = codes * a.repeat(GROUP, axis=1) + b.repeat(GROUP, axis=1)
        assert lanes.min() >= 0
        assert lanes.max() < 1 << 16
        self.codes: Whole = (lanes >> 8) - 128

    @property
    def values(self) -> Doubles:
        steps = self.steps.astype(np.float64).repeat(SPAN, axis=1)[:, : self.codes.shape[1]]
        return np.asarray(self.codes * steps)


def quantised(x: Floats) -> tuple[Whole, Floats]:
    """Codes [T, K] and scales [T, spans] of activations."""
    rows, columns = x.shape
    spans = -(-columns // SPAN)
    padded = np.zeros((rows, spans * SPAN), np.float32)
    padded[:, :columns] = x
    blocks = padded.reshape(rows, spans, SPAN)
    peak = np.abs(blocks).max(axis=2)
    inverse = np.divide(np.float32(127), peak, out=np.zeros_like(peak), where=peak > 0)
    codes = np.rint(blocks * inverse[:, :, None]).astype(np.int64)
    return codes.reshape(rows, -1)[:, :columns], peak / np.float32(127)


def span_sums(x: Floats, w: SpanWeights, start: Floats | None = None) -> Floats:
    """Integer sums of each span, exact in float32, times the weights' step; then added times the activations' scale."""
    codes, scales = quantised(x)
    total = np.zeros((len(x), len(w.codes)), np.float32) if start is None else start
    for span in range(scales.shape[1]):
        at = slice(span * SPAN, (span + 1) * SPAN)
        sums = (codes[:, at] @ w.codes[:, at].T).astype(np.float32)
        total = fused(sums * w.steps[None, :, span], scales[:, span, None], total)
    return total


def product(layer: PanelLinear, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """x W^T + bias in prompt arithmetic; onto `out` if given."""
    accumulate = out is not None
    if out is None:
        out = torch.full((len(x), layer.out_features), torch.nan)
    cpu.linear(layer.scheme, layer.panels, x, out, layer.bias, accumulate=accumulate, prompt=True)
    return out


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("rows", "n", "k"), [(1, 16, 32), (5, 40, 96), (11, 32, 128), (21, 48, 576), (33, 72, 160), (9, 16, 1536)]
)
def test_sums_are_those_of_the_definition_bit_for_bit(kind: str, rows: int, n: int, k: int) -> None:
    x = torch.randn(rows, k, generator=torch.Generator().manual_seed(rows))
    tensor = packed(kind, n, k)
    np.testing.assert_array_equal(
        product(native(tensor, "int4-int8"), x).numpy(), span_sums(x.numpy(), SpanWeights(tensor))
    )


def test_superblocks_of_another_encoding_are_rounded_likewise() -> None:
    tensor, x = packed("Q4_K", 24, 512), torch.randn(14, 512)
    np.testing.assert_array_equal(
        product(native(tensor, "int4-int8"), x).numpy(), span_sums(x.numpy(), SpanWeights(tensor))
    )


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_apart_are_multiplied_first_in_float32(kind: str) -> None:
    """Outliers are zero in the spans, and their weights are the file's, in float16."""
    channels = [3, 70, 200]
    tensor, x = packed(kind, 40, 256), torch.randn(17, 256)
    x[:, channels] *= 50
    weights = pack_columns([tensor], channels)
    out = torch.empty(17, 40)
    layer = native(tensor, "int4-int8")
    cpu.linear(
        layer.scheme, layer.panels, x, out, prompt=True, outliers=torch.tensor(channels, dtype=torch.int32),
        outlier_panels=torch.from_numpy(weights),
    )  # fmt: skip
    rest, start = x.numpy().copy(), np.zeros((17, 40), np.float32)
    rest[:, channels] = 0
    columns = weights.transpose(0, 2, 1).reshape(-1, len(channels))[:40].astype(np.float32)
    for i, channel in enumerate(channels):
        start = fused(x.numpy()[:, channel, None], columns[None, :, i], start)
    np.testing.assert_array_equal(out.numpy(), span_sums(rest, SpanWeights(tensor), start))


@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_moves_by_little_more_than_half_a_step(kind: str) -> None:
    tensor = packed(kind, 48, 576)
    w, exact = SpanWeights(tensor), packed_values(tensor)
    steps = w.steps.astype(np.float64).repeat(SPAN, axis=1)[:, :576]
    # Rounding, then scale and minimum in 256ths of a step: 15 codes of 4 bits, 128 of 8.
    assert (np.abs(w.values - exact) <= steps * (0.5 + (129 if kind == "Q8_0" else 17) / 512)).all()


def packed_values(tensor: PackedTensor) -> Doubles:
    if panel_kind(tensor, "int4-int8") == "int8":
        codes, scale = int8_codes(tensor)
        return np.asarray(codes * scale.astype(np.float64).repeat(GROUP, axis=1))
    parts = group_codes(tensor)
    scale, minimum = (
        v.astype(np.float16).astype(np.float64).repeat(GROUP, axis=1) for v in (parts.scale, parts.minimum)
    )
    return np.asarray(parts.codes * scale + minimum)


def test_a_group_of_8_bits_with_the_greatest_scale_keeps_its_codes() -> None:
    tensor = packed("Q8_0", 32, 128)
    codes, scale = int8_codes(tensor)
    w = SpanWeights(tensor)
    greatest = (scale == scale.max(axis=1, keepdims=True)).repeat(GROUP, axis=1)
    assert greatest.any(axis=1).all()
    np.testing.assert_array_equal(w.codes[greatest], codes[greatest])


@pytest.mark.parametrize("kind", KINDS)
def test_the_error_is_that_of_its_roundings(kind: str) -> None:
    tensor, x = packed(kind, 48, 576), torch.randn(40, 576, generator=torch.Generator().manual_seed(2))
    got, w = product(native(tensor, "int4-int8"), x).numpy(), SpanWeights(tensor)
    exact = x.double().numpy() @ packed_values(tensor).T
    codes, scales = quantised(x.numpy())
    wide = scales.astype(np.float64).repeat(SPAN, axis=1)[:, :576]
    weights = w.steps.astype(np.float64).repeat(SPAN, axis=1)[:, :576] * 0.76
    bound = 0.501 * wide @ np.abs(w.values).T + np.abs(x.double().numpy()) @ weights.T
    assert (np.abs(got - exact) <= bound * 1.001).all()
    assert np.linalg.norm(got - exact) / np.linalg.norm(exact) < 0.02
    assert np.abs(codes).max() == 127


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_has_the_same_bits_alone_and_in_any_batch(kind: str) -> None:
    layer, x = native(packed(kind, 80, 160), "int4-int8"), torch.randn(70, 160)
    together = product(layer, x)
    for first, count in ((0, 1), (15, 2), (31, 33), (69, 1), (3, 64), (5, 11)):
        assert torch.equal(product(layer, x[first : first + count]), together[first : first + count])


def test_bias_and_what_was_there_are_added_and_other_columns_left_alone() -> None:
    bias, x, wide = torch.randn(40), torch.randn(19, 64), torch.full((19, 50), 3.0)
    plain = product(native(packed("Q4_1", 40, 64), "int4-int8"), x)
    product(native(packed("Q4_1", 40, 64), "int4-int8", bias), x, wide[:, :40])
    assert torch.equal(wide[:, :40], (plain + bias) + 3.0)
    assert torch.equal(wide[:, 40:], torch.full((19, 10), 3.0))


@pytest.mark.usefixtures("threads")
def test_the_number_of_threads_does_not_change_a_bit() -> None:
    layer, x = native(packed("Q4_0", 112, 96), "int4-int8"), torch.randn(33, 96)
    cpu.set_threads(1)
    alone = product(layer, x)
    cpu.set_threads(3)
    assert torch.equal(product(layer, x), alone)


def test_a_row_of_zeros_is_zero_and_one_that_is_no_number_spoils_itself_alone() -> None:
    layer, x = native(packed("Q4_1", 32, 160), "int4-int8"), torch.randn(20, 160)
    x[4] = 0
    want = product(layer, x)
    assert torch.equal(want[4], torch.zeros(32))
    x[7, 3] = torch.inf
    others = torch.arange(20) != 7
    assert torch.equal(product(layer, x)[others], want[others])


@pytest.mark.parametrize(("kind", "compute"), [("BF16", "bfloat16"), ("Q4_1", "int4")])
def test_layers_of_float_activations_are_computed_as_generated_tokens_are(kind: str, compute: str) -> None:
    layer, x = native(packed(kind, 24, 64), compute), torch.randn(9, 64)  # type: ignore[arg-type]
    want = torch.empty(9, 24)
    layer.apply(x, want)
    assert torch.equal(product(layer, x), want)
