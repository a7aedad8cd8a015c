"""Linear layers on the native kernels."""

from dataclasses import dataclass

import torch

from inference_core.linear.linear import Linear
from inference_core.native import cpu
from inference_core.native.cpu import Scheme


@dataclass(slots=True, frozen=True)
class Outliers:
    """Inputs that an integer layer multiplies in float32. `channels` int32 [n]; `panels` float16
    [ceil(out_features / 16), n, 16], their weights."""

    channels: torch.Tensor
    panels: torch.Tensor


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
            self.scheme,
            self.panels,
            x,
            out,
            self.bias,
            accumulate=accumulate,
            outliers=channels,
            outlier_panels=panels,
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
