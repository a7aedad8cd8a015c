"""The interface of linear layers: packed weights with a method that applies them."""

from abc import ABC, abstractmethod

import torch


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
