"""Linear layers in plain torch: the oracle of the native kernels, and the fallback without a compiler."""

import torch
from torch.nn import functional

from inference_core.linear.linear import Linear

GROUP = 32


def quantize_activations(x: torch.Tensor) -> torch.Tensor:
    """Round x float32 [T, K] to INT8 with one scale per row and group of 32, and scale it back.

    Dynamic symmetric quantisation: scale = max|x| / 127, ties to even.
    """
    groups = x.reshape(x.shape[0], -1, GROUP)
    peak = groups.abs().amax(dim=-1, keepdim=True)
    inverse = torch.where(peak > 0, 127.0 / peak, 0.0)
    return (torch.round(groups * inverse) * (peak / 127.0)).reshape(x.shape)


class ReferenceLinear(Linear):
    """Dense float32 weights [out, in]; with `quantize` the activations are rounded to INT8 first."""

    batch_invariant = False

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, *, quantize: bool) -> None:
        self.weight = weight
        self.bias = bias
        self.quantize = quantize
        self.out_features, self.in_features = weight.shape

    def apply(self, x: torch.Tensor, out: torch.Tensor, *, accumulate: bool = False) -> None:
        y = functional.linear(quantize_activations(x) if self.quantize else x, self.weight, self.bias)
        if accumulate:
            out += y
        else:
            out.copy_(y)
