"""Mixtures of experts (Shazeer et al. 2017) as torch custom ops `aio::*`: plain torch on the CPU, Triton on CUDA.

A step of T tokens that take k experts each has T * k rows: row t * k + j is the j-th choice of token t. `group_rows`
sorts the rows by expert, so that an expert reads its weights once for all of its rows. Nothing waits for the device or
depends on numbers on it, so a step can be captured as a graph. Importing this module registers the ops, without triton.
"""

from dataclasses import dataclass

import torch

from inference_core.triton_kernels.experts import expert_reference
from inference_core.triton_kernels.registration import register


@dataclass(slots=True, frozen=True)
class ExpertRows:
    """The rows of a step by expert. `experts` int32 [T, k]: each token's choices, best first; -1 in rows of
    padding, which are not computed. `weights` float32 [T, k]. `order` int32 [T * k]: rows sorted by expert, then by
    row; expert e has those from `starts[e]` to `starts[e + 1]`, int32 [experts + 1]."""

    experts: torch.Tensor
    weights: torch.Tensor
    order: torch.Tensor
    starts: torch.Tensor


def route(logits: torch.Tensor, slots: torch.Tensor, taken: int, *, normalise: bool) -> ExpertRows:
    """Choose `taken` experts for every token by its router's `logits` [T, experts]; tokens with a negative slot int64
    [T] are padding. Weights are the softmax over all experts, or with `normalise` over the chosen ones."""
    tokens, count = logits.shape
    ints = {"dtype": torch.int32, "device": logits.device}
    rows = ExpertRows(
        torch.empty(tokens, taken, **ints),
        logits.new_empty(tokens, taken, dtype=torch.float32),
        torch.empty(tokens * taken, **ints),
        torch.empty(count + 1, **ints),
    )
    torch.ops.aio.route_experts(rows.experts, rows.weights, logits, slots, normalise)
    torch.ops.aio.group_rows(rows.order, rows.starts, rows.experts)
    return rows


def _route_experts_cuda(
    experts: torch.Tensor, weights: torch.Tensor, logits: torch.Tensor, slots: torch.Tensor, normalise: bool
) -> None:
    from inference_core.triton_kernels.experts.expert_rows import route_experts

    route_experts(logits, slots, experts, weights, normalise=normalise)


def _group_rows_cuda(order: torch.Tensor, starts: torch.Tensor, experts: torch.Tensor) -> None:
    from inference_core.triton_kernels.experts.expert_rows import group_rows

    group_rows(experts, order, starts)


def _dense_experts_cuda(
    out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, order: torch.Tensor, starts: torch.Tensor, taken: int
) -> None:
    from inference_core.triton_kernels.experts.expert_linear import dense_experts

    dense_experts(x, weight, order, starts, out, taken=taken)


def _int4_experts_cuda(
    out: torch.Tensor,
    x: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    offsets: torch.Tensor | None,
    order: torch.Tensor,
    starts: torch.Tensor,
    taken: int,
) -> None:
    from inference_core.triton_kernels.experts.expert_linear import int4_experts

    int4_experts(x, codes, scales, offsets, order, starts, out, taken=taken)


def _add_experts_cuda(out: torch.Tensor, parts: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> None:
    from inference_core.triton_kernels.experts.expert_rows import add_experts

    add_experts(parts, experts, weights, out)


register(
    "route_experts(Tensor(a!) experts, Tensor(b!) weights, Tensor logits, Tensor slots, bool normalise) -> ()",
    cpu=lambda experts, weights, logits, slots, normalise: expert_reference.reference_route_experts(
        logits, slots, experts, weights, normalise=normalise
    ),
    cuda=_route_experts_cuda,
)
register(
    "group_rows(Tensor(a!) order, Tensor(b!) starts, Tensor experts) -> ()",
    cpu=lambda order, starts, experts: expert_reference.reference_group_rows(experts, order, starts),
    cuda=_group_rows_cuda,
)
register(
    "dense_experts(Tensor(a!) out, Tensor x, Tensor weight, Tensor order, Tensor starts, int taken) -> ()",
    cpu=lambda out, x, weight, order, starts, taken: expert_reference.reference_dense_experts(
        x, weight, order, starts, out, taken=taken
    ),
    cuda=_dense_experts_cuda,
)
register(
    "int4_experts(Tensor(a!) out, Tensor x, Tensor codes, Tensor scales, Tensor? offsets, Tensor order, "
    "Tensor starts, int taken) -> ()",
    cpu=lambda out, x, codes, scales, offsets, order, starts, taken: expert_reference.reference_int4_experts(
        x, codes, scales, offsets, order, starts, out, taken=taken
    ),
    cuda=_int4_experts_cuda,
)
register(
    "add_experts(Tensor(a!) out, Tensor parts, Tensor experts, Tensor weights) -> ()",
    cpu=lambda out, parts, experts, weights: expert_reference.reference_add_experts(parts, experts, weights, out),
    cuda=_add_experts_cuda,
)
