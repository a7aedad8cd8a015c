"""Quantised layers and sampling as custom ops: torch's contract holds, and on the CPU they are the references."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from inference_core.device.sampling import (
    EditTables,
    row_bias,
    row_uses,
)
from inference_core.linear.device import DenseLinear, EightBitLinear, Int4Linear
from inference_core.linear.linear import Linear
from inference_core.protocol import SamplingParams
from inference_core.sampling.reference_sampler import sample_row
from inference_core.step_plan import SampleSpec
from inference_core.triton_kernels import ops  # noqa: F401  it registers the ops
from inference_core.triton_kernels.reference import dequantized_int4, dequantized_operands, quantize_rows
from inference_core.triton_kernels.weights import Int4Weight, pack_int4, quantize_blocks, quantize_channels
from tests.inference_core.triton_kernels.draws import draw_params
from tests.inference_core.triton_kernels.int4_tensors import int4_tensor

OUTPUTS, INPUTS = 12, 288


def int4_weight() -> Int4Weight:
    return Int4Weight.load(pack_int4(int4_tensor("Q4_1", OUTPUTS, INPUTS)), INPUTS, "cpu")


def dense_weight() -> torch.Tensor:
    return torch.randn(OUTPUTS, INPUTS, generator=torch.Generator().manual_seed(1)) * 0.1


def activations(rows: int = 3) -> torch.Tensor:
    return torch.randn(rows, INPUTS, generator=torch.Generator().manual_seed(2))


def int4_arguments() -> tuple[Any, ...]:
    weight = int4_weight()
    return torch.empty(3, OUTPUTS), activations(), weight.codes, weight.scales, weight.offsets, None, False


def eight_bit_arguments() -> tuple[Any, ...]:
    weight = quantize_channels(dense_weight(), torch.int8)
    return torch.zeros(3, OUTPUTS), activations(), None, weight.codes, weight.scales, torch.ones(OUTPUTS), True


def quantized_arguments() -> tuple[Any, ...]:
    out, x, _, *weight = eight_bit_arguments()
    return out, *quantize_rows(x, torch.int8), *weight


def specs() -> list[SampleSpec]:
    params = [SamplingParams(top_p=0.9, presence_penalty=0.5), SamplingParams(temperature=0)]
    return [SampleSpec(p, [1], [2, 3], row, 2, ()) for row, p in enumerate(params)]


def logits() -> torch.Tensor:
    return torch.randn(2, 50, generator=torch.Generator().manual_seed(4))


def edit_arguments() -> tuple[Any, ...]:
    tables = EditTables.empty(2, 4, 50, torch.device("cpu"))
    for row, one in enumerate(specs()):
        tables.set_bias(row, row_bias(one, 50))
        tables.set_uses(row, row_uses(one, one.output_token_ids, 50))
    rows = torch.tensor([0, 1], dtype=torch.int32)
    presence, zeros = torch.tensor([0.5, 0.0]), torch.zeros(2)
    return logits(), rows, tables.token_ids, tables.bias, tables.num_biased, tables.uses, zeros + 1, presence, zeros


def total_arguments() -> tuple[Any, ...]:
    return torch.empty(2), torch.empty(2, dtype=torch.int64), logits()


def draw_arguments() -> tuple[Any, ...]:
    laws = draw_params(specs())
    drawn = torch.empty(2, dtype=torch.int64)
    return drawn, logits(), *laws.values()


CASES: dict[str, Callable[[], tuple[Any, ...]]] = {
    "int4_linear": int4_arguments,
    "eight_bit_linear": eight_bit_arguments,
    "eight_bit_linear, codes": quantized_arguments,
    "edit_logits": edit_arguments,
    "draw_tokens": draw_arguments,
    "row_totals": total_arguments,
}


@pytest.mark.parametrize("name", CASES)
def test_an_op_says_truly_what_it_writes_and_traces(name: str) -> None:
    torch.library.opcheck(getattr(torch.ops.aio, name.partition(",")[0]).default, CASES[name]())


def layers() -> dict[str, tuple[Callable[[torch.Tensor | None], Linear], torch.Tensor, torch.Tensor]]:
    """A layer given its bias, the activations as it sees them, and its weight."""
    int4, x, dense = int4_weight(), activations(), dense_weight()
    exact = dequantized_int4(int4.codes, int4.scales, int4.offsets, INPUTS)
    eight = {"int8": quantize_channels(dense, torch.int8), "fp8 blocks": quantize_blocks(dense)}
    made: dict[str, Any] = {
        "dense": (lambda bias: DenseLinear(dense, bias), x, dense),
        "int4": (lambda bias: Int4Linear(int4, bias), x, exact),
    }
    for name, weight in eight.items():
        seen = dequantized_operands(x, weight.codes, weight.scales)
        made[name] = (lambda bias, weight=weight: EightBitLinear(weight, bias), *seen)
    return made


@pytest.mark.parametrize("accumulate", [False, True], ids=["written", "added"])
@pytest.mark.parametrize("biased", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("name", ["dense", "int4", "int8", "fp8 blocks"])
def test_a_layer_writes_or_adds_its_product(name: str, biased: bool, accumulate: bool) -> None:
    build, seen, weight = layers()[name]
    bias = torch.linspace(-1, 1, OUTPUTS) if biased else None
    layer = build(bias)
    before = torch.randn(3, OUTPUTS, generator=torch.Generator().manual_seed(5))
    out = before.clone()

    layer.apply(activations(), out, accumulate=accumulate)

    expected = seen @ weight.T + (0 if bias is None else bias) + (before if accumulate else 0)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-4)
    assert (layer.in_features, layer.out_features) == (INPUTS, OUTPUTS)


def test_sampling_on_the_cpu_is_that_of_the_reference() -> None:
    edits, draws = edit_arguments(), draw_arguments()
    torch.ops.aio.edit_logits(*edits)
    drawn = draws[0]
    torch.ops.aio.draw_tokens(drawn, edits[0], *draws[2:])
    expected = [sample_row(row, one) for row, one in zip(logits().numpy(), specs(), strict=True)]
    assert drawn.tolist() == [token.token_id for token in expected if token is not None]
