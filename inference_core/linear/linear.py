"""Linear layers: packed weights with a method that applies them, on the native kernels or in plain torch.

Plain torch is the oracle of the native kernels, and the fallback without a compiler.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch.nn import functional

from inference_core.native import cpu
from inference_core.native.cpu import Scheme


class Linear(ABC):
    """y = x W^T + b; activations are float32 on the CPU, on a device of the implementation's dtype.

    Contract: if `batch_invariant`, a row's result does not depend on the other rows.
    """

    in_features: int
    out_features: int
    batch_invariant: bool

    @abstractmethod
    def apply(self, x: torch.Tensor, out: torch.Tensor, *, accumulate: bool = False) -> None:
        """Write (or add) the result for x [T, in_features] to out [T, out_features], both of the activations' dtype."""


@dataclass(slots=True, frozen=True)
class Outliers:
    """Inputs that an integer layer multiplies in float32."""

    channels: torch.Tensor
    """int32 [n]."""
    panels: torch.Tensor
    """float16 [ceil(out_features / 16), n, 16], their weights."""


class PanelLinear(Linear):
    """Panels of `linear.panels` applied by the native kernels; batch-invariant.

    `panels`: uint8 [ceil(out_features / 16), panel bytes], usually mapped from the weight cache.
    """

    batch_invariant = True

    def __init__(
        self,
        scheme: Scheme,
        panels: torch.Tensor,
        in_features: int,
        out_features: int,
        bias: torch.Tensor | None,
        outliers: Outliers | None = None,
    ) -> None:
        self.scheme = scheme
        self.panels = panels
        self.in_features = in_features
        self.out_features = out_features
        self.bias = bias
        self.outliers = outliers

    def with_outliers(self, outliers: Outliers) -> "PanelLinear":
        """Return the same layer with these inputs apart."""
        return PanelLinear(self.scheme, self.panels, self.in_features, self.out_features, self.bias, outliers)

    def apply(self, x: torch.Tensor, out: torch.Tensor, *, accumulate: bool = False) -> None:
        channels, panels = (None, None) if self.outliers is None else (self.outliers.channels, self.outliers.panels)
        cpu.linear(
            self.scheme, self.panels, x, out, self.bias, accumulate=accumulate, outliers=channels, outlier_panels=panels
        )


class ConcatenatedLinear(Linear):
    """Several linear layers over one input, outputs concatenated: projections whose encodings differ are not fused."""

    batch_invariant = True

    def __init__(self, parts: list[Linear]) -> None:
        self.parts = parts
        self.in_features = parts[0].in_features
        self.out_features = sum(part.out_features for part in parts)
        self.batch_invariant = all(part.batch_invariant for part in parts)

    def apply(self, x: torch.Tensor, out: torch.Tensor, *, accumulate: bool = False) -> None:
        column = 0
        for part in self.parts:
            part.apply(x, out[:, column : column + part.out_features], accumulate=accumulate)
            column += part.out_features


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
