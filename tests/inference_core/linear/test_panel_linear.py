"""Packed linears equal their dequantised reference within a stated bound, alone and in a batch (SPEC AT-06, QZ-05)."""

import numpy as np
import pytest
import torch

from inference_core.linear.linear import ReferenceLinear, quantize_activations
from inference_core.linear.panels import BYTES_PER_WEIGHT, int8_codes, pack, panel_kind
from inference_core.loaders.packed_tensor import PackedTensor, bfloat16_to_float32, dequantize, float32_to_bfloat16
from inference_core.model_spec import Compute
from tests.inference_core.linear.packed_linears import native, packed


def reference(tensor: PackedTensor, compute: Compute, bias: torch.Tensor | None = None) -> ReferenceLinear:
    kind, weight = panel_kind(tensor, compute), dequantize(tensor)
    if kind == "int8":
        codes, scale = int8_codes(tensor)
        weight = codes * np.repeat(scale, 32, axis=1)
    if kind == "bfloat16":
        weight = bfloat16_to_float32(float32_to_bfloat16(weight))
    quantize = compute == "int4-int8" and kind in ("int4", "int4-centred", "int8")
    return ReferenceLinear(torch.from_numpy(weight.copy()), bias, quantize=quantize)


CASES: list[tuple[str, Compute]] = [
    ("Q4_0", "int4-int8"),
    ("Q4_1", "int4-int8"),
    ("Q4_K", "int4-int8"),
    ("Q8_0", "int4-int8"),
    ("Q5_1", "int4-int8"),
    ("Q4_0", "int4"),
    ("Q4_1", "int4"),
    ("Q8_0", "bfloat16"),
    ("BF16", "bfloat16"),
    ("Q4_1", "float32"),
    ("F32", "float32"),
]


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize(("kind", "compute"), CASES)
@pytest.mark.parametrize("rows", [1, 3, 4, 13])
@pytest.mark.parametrize("outputs", [16, 50])
def test_the_native_linear_equals_its_reference(kind: str, compute: Compute, rows: int, outputs: int) -> None:
    tensor = packed(kind, outputs, 512)
    x, bias = torch.randn(rows, 512, generator=torch.Generator().manual_seed(rows)), torch.linspace(-1, 1, outputs)
    got, want = torch.empty(rows, outputs), torch.empty(rows, outputs)
    native(tensor, compute, bias).apply(x, got)
    reference(tensor, compute, bias).apply(x, want)
    # Q4_K's scales are products that are rounded to float16: relative error 2^-11 per group, and they average out.
    bound = 2e-3 if kind == "Q4_K" else 1e-4
    assert (got - want).abs().max() <= bound * want.abs().max()


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize(("kind", "compute"), CASES)
def test_a_row_has_the_same_bits_alone_and_in_any_batch(kind: str, compute: Compute) -> None:
    linear, x = native(packed(kind, 40, 256), compute), torch.randn(21, 256)
    together = torch.empty(21, 40)
    linear.apply(x, together)
    for row in range(21):
        alone = torch.empty(1, 40)
        linear.apply(x[row : row + 1].clone(), alone)
        assert torch.equal(alone[0], together[row])


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
@pytest.mark.parametrize(("inputs", "rows"), [(64, 40), (576, 25), (1536, 41)])
def test_rows_that_share_unpacked_weights_have_the_bits_of_those_that_unpack_them(
    kind: str, inputs: int, rows: int
) -> None:
    linear, x = native(packed(kind, 40, inputs), "int4-int8"), torch.randn(rows, inputs)
    many, few = torch.empty(rows, 40), torch.empty(rows, 40)
    linear.apply(x, many)
    for first in range(0, rows, 8):
        linear.apply(x[first : first + 8], few[first : first + 8])
    assert torch.equal(many, few)


@pytest.mark.usefixtures("instruction_set")
def test_accumulate_adds_to_what_was_there_and_leaves_other_columns_alone() -> None:
    linear, x = native(packed("Q4_1", 20, 64), "int4-int8"), torch.randn(5, 64)
    plain = torch.empty(5, 20)
    linear.apply(x, plain)
    wide = torch.ones(5, 30)
    linear.apply(x, wide[:, :20], accumulate=True)
    torch.testing.assert_close(wide[:, :20], plain + 1)
    assert torch.equal(wide[:, 20:], torch.ones(5, 10))


@pytest.mark.usefixtures("instruction_set")
def test_a_row_of_zeros_gives_the_bias() -> None:
    bias = torch.arange(16.0)
    out = torch.empty(2, 16)
    native(packed("Q8_0", 16, 64), "int4-int8", bias).apply(torch.zeros(2, 64), out)
    assert torch.equal(out, bias.expand(2, 16))


def test_activations_are_rounded_by_at_most_half_a_step_of_their_group() -> None:
    x = torch.randn(7, 128) * 10
    step = x.reshape(7, 4, 32).abs().amax(-1, keepdim=True) / 127
    error = (quantize_activations(x) - x).reshape(7, 4, 32).abs()
    assert (error <= step * 0.5001).all()


def test_an_encoding_without_a_scheme_falls_back_to_a_wider_type() -> None:
    assert panel_kind(packed("F32", 16, 48), "int4-int8") == "float32"
    assert panel_kind(packed("Q5_0", 16, 64), "int4-int8") == "int8"
    assert panel_kind(packed("Q5_0", 16, 64), "int4") == "bfloat16"


@pytest.mark.parametrize(("kind", "compute"), CASES)
def test_the_bytes_that_memory_plans_count_on_are_those_that_packing_makes(kind: str, compute: Compute) -> None:
    tensor = packed(kind, 32, 512)
    chosen = panel_kind(tensor, compute)
    assert pack(tensor, chosen).nbytes == 32 * 512 * BYTES_PER_WEIGHT[chosen]
