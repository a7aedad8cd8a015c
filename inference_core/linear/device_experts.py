"""The experts of a layer on a device: one projection of all of them, over rows that are sorted by expert."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from inference_core.linear.device import DenseLinear, Int4Linear
from inference_core.linear.linear import Linear
from inference_core.triton_kernels.experts.expert_ops import ExpertRows
from inference_core.triton_kernels.linear.linear_reference import dequantized_int4


class ExpertLinear(ABC):
    """y = x W_e^T for the rows of each expert e, in the activations' dtype. A row's sum does not depend on the others.

    `tensors`: what it holds on the device.
    """

    in_features: int
    out_features: int
    tensors: tuple[torch.Tensor, ...]

    @abstractmethod
    def apply(self, x: torch.Tensor, out: torch.Tensor, rows: ExpertRows, taken: int) -> None:
        """Write `out` [T k, out_features]. With `taken` = k, x [T, in_features] has a row per token and `out` is sorted
        as `rows.order`; with 0, x [T k, in_features] is sorted so, and `out` is not. Rows of padding stay as they are.
        """


class DenseExperts(ExpertLinear):
    """Weights [experts, N, K] in the activations' dtype."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight
        self.tensors = (weight,)
        _, self.out_features, self.in_features = weight.shape

    def apply(self, x: torch.Tensor, out: torch.Tensor, rows: ExpertRows, taken: int) -> None:
        torch.ops.aio.dense_experts(out, x, self.weight, rows.order, rows.starts, taken)


class Int4Experts(ExpertLinear):
    """4-bit weights on float16 or bfloat16 activations (W4A16): arrays of `Int4Weight`, stacked by expert."""

    def __init__(
        self, codes: torch.Tensor, scales: torch.Tensor, offsets: torch.Tensor | None, in_features: int
    ) -> None:
        self.codes, self.scales, self.offsets = codes, scales, offsets
        self.tensors = (codes, scales) if offsets is None else (codes, scales, offsets)
        self.in_features = in_features
        self.out_features = codes.shape[2]

    def apply(self, x: torch.Tensor, out: torch.Tensor, rows: ExpertRows, taken: int) -> None:
        torch.ops.aio.int4_experts(out, x, self.codes, self.scales, self.offsets, rows.order, rows.starts, taken)


def stack_experts(linears: Sequence[Linear], device: torch.device | str, dtype: torch.dtype) -> ExpertLinear:
    """Stack one projection of every expert on `device`: as 4 bits if all have them, else dense, in `dtype`."""
    packed = [linear for linear in linears if isinstance(linear, Int4Linear)]
    if len(packed) < len(linears):
        return DenseExperts(torch.stack([_dense(linear, dtype) for linear in linears]).to(device))
    # Experts may have merged their scales differently, and some may be symmetric.
    groups = max(len(linear.weight.scales) for linear in packed)
    scales = torch.stack([_spread(linear.weight.scales, groups) for linear in packed])
    offsets = None
    if any(linear.weight.offsets is not None for linear in packed):
        offsets = torch.stack([_spread(_offsets(linear), groups) for linear in packed]).to(device)
    codes = torch.stack([linear.weight.codes for linear in packed])
    return Int4Experts(codes.to(device), scales.to(device), offsets, packed[0].in_features)


def _dense(linear: Linear, dtype: torch.dtype) -> torch.Tensor:
    if isinstance(linear, DenseLinear):
        return linear.weight.to(dtype)
    if isinstance(linear, Int4Linear):
        w = linear.weight
        return dequantized_int4(w.codes, w.scales, w.offsets, w.in_features).to(dtype)
    raise TypeError(f"experts are DenseLinear or Int4Linear, not {type(linear).__name__}")


def _offsets(linear: Int4Linear) -> torch.Tensor:
    offsets = linear.weight.offsets
    return torch.zeros_like(linear.weight.scales) if offsets is None else offsets


def _spread(values: torch.Tensor, groups: int) -> torch.Tensor:
    """[own groups, N] -> [groups, N]."""
    return values.repeat_interleave(groups // len(values), dim=0)
