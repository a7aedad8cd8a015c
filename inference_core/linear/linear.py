"""The seam of linear layers: packed weights that know how to apply themselves."""

from abc import ABC, abstractmethod

import torch


class Linear(ABC):
    """y = x W^T + b; activations are float32 on the CPU, and of one dtype that the implementation names on a device.

    Contract: a row's result does not depend on the other rows where the implementation says `batch_invariant`.
    """

    in_features: int
    out_features: int
    batch_invariant: bool

    @abstractmethod
    def apply(self, x: torch.Tensor, out: torch.Tensor, *, accumulate: bool = False) -> None:
        """Write (or add) the result for x [T, in_features] to out [T, out_features], both of the activations' dtype."""
