"""Linear layers on a device: dense weights by torch, 4-bit and 8-bit weights by the project's custom ops."""

import torch

from inference_core.linear.linear import Linear
from inference_core.triton_kernels.linear.dense_linear import dense_linear
from inference_core.triton_kernels.linear.eight_bit import EightBitWeight
from inference_core.triton_kernels.linear.int4_weight import Int4Weight
from inference_core.triton_kernels.linear.linear_ops import eight_bit_linear, int4_linear


class DenseLinear(Linear):
    """A weight [N, K] in the activations' dtype, multiplied by torch."""

    batch_invariant = False

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight = weight
        self.bias = bias
        self.out_features, self.in_features = weight.shape

    def apply(self, x: torch.Tensor, out: torch.Tensor, *, accumulate: bool = False) -> None:
        dense_linear(x, self.weight, self.bias, out, accumulate=accumulate)


class Int4Linear(Linear):
    """4-bit weights on float16 or bfloat16 activations (W4A16)."""

    batch_invariant = False

    def __init__(self, weight: Int4Weight, bias: torch.Tensor | None) -> None:
        self.weight = weight
        self.bias = bias
        self.in_features = weight.in_features
        self.out_features = weight.out_features

    def apply(self, x: torch.Tensor, out: torch.Tensor, *, accumulate: bool = False) -> None:
        int4_linear(x, self.weight, self.bias, out, accumulate=accumulate)


class EightBitLinear(Linear):
    """INT8 or FP8 weights on dynamically quantised activations (W8A8)."""

    batch_invariant = False

    def __init__(self, weight: EightBitWeight, bias: torch.Tensor | None) -> None:
        self.weight = weight
        self.bias = bias
        self.out_features, self.in_features = weight.codes.shape

    def apply(self, x: torch.Tensor, out: torch.Tensor, *, accumulate: bool = False) -> None:
        eight_bit_linear(x, self.weight, self.bias, out, accumulate=accumulate)
