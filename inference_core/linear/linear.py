"""The seam of linear layers: packed weights that know how to apply themselves."""

from abc import ABC, abstractmethod

import torch


class Linear(ABC):
    """y = x W^T + b on float32 activations.

    Contract: a row's result does not depend on the other rows where the implementation says `batch_invariant`.
    """

    in_features: int
    out_features: int
    batch_invariant: bool

    @abstractmethod
    def apply(self, x: torch.Tensor, out: torch.Tensor, *, accumulate: bool = False) -> None:
        """Write (or add) the result for x float32 [T, in_features] to out float32 [T, out_features]."""
