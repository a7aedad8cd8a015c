"""References of the ops in `expert_ops`, in plain torch and float32: the kernels' oracle and CPU implementation."""

from collections.abc import Iterator
from itertools import pairwise

import torch

from inference_core.triton_kernels.linear.linear_reference import dequantized_int4

PADDING = -1  # the expert of rows that are not computed


def reference_route_experts(
    logits: torch.Tensor, slots: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor, *, normalise: bool
) -> None:
    """See `expert_rows.route_experts`."""
    values, taken = logits.float(), experts.shape[1]
    order = values.sort(dim=-1, descending=True, stable=True).indices[:, :taken]
    chosen = values.gather(1, order)
    shifted = (chosen - chosen[:, :1]).exp()
    total = shifted if normalise else (values - chosen[:, :1]).exp()
    weights.copy_(shifted / total.sum(-1, keepdim=True))
    experts.copy_(order.masked_fill(slots[:, None] < 0, PADDING))


def reference_group_rows(experts: torch.Tensor, order: torch.Tensor, starts: torch.Tensor) -> None:
    """See `expert_rows.group_rows`."""
    found = experts.flatten().sort(stable=True)
    starts.copy_(torch.searchsorted(found.values, torch.arange(len(starts), dtype=found.values.dtype)))
    order.copy_(found.indices)


def reference_dense_experts(
    x: torch.Tensor,
    weight: torch.Tensor,
    order: torch.Tensor,
    starts: torch.Tensor,
    out: torch.Tensor,
    *,
    taken: int,
) -> None:
    """See `expert_linear.dense_experts`."""
    for expert, source, target in _rows(order, starts, taken):
        out[target] = (x[source].float() @ weight[expert].float().T).to(out.dtype)


def reference_int4_experts(
    x: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    offsets: torch.Tensor | None,
    order: torch.Tensor,
    starts: torch.Tensor,
    out: torch.Tensor,
    *,
    taken: int,
) -> None:
    """See `expert_linear.int4_experts`."""
    for expert, source, target in _rows(order, starts, taken):
        offset = None if offsets is None else offsets[expert]
        weight = dequantized_int4(codes[expert], scales[expert], offset, x.shape[1])
        out[target] = (x[source].float() @ weight.T).to(out.dtype)


def reference_add_experts(parts: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor, out: torch.Tensor) -> None:
    """See `expert_rows.add_experts`. Rows of padding, whose parts were not computed, are zeros."""
    tokens, taken = experts.shape
    weighted = parts.view(tokens, taken, -1).float() * weights[:, :, None]
    out.copy_(weighted.sum(1).masked_fill(experts[:, :1] == PADDING, 0))


def _rows(order: torch.Tensor, starts: torch.Tensor, taken: int) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Each expert that has rows, which rows of `x` they read, and which rows of `out` they write."""
    for expert, (begin, end) in enumerate(pairwise(starts.tolist())):
        if begin < end:
            rows, sorted_rows = order[begin:end].long(), torch.arange(begin, end)
            yield (expert, rows // taken, sorted_rows) if taken else (expert, sorted_rows, rows)
