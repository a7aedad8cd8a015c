"""The seam of linear layers on a device."""

from abc import ABC, abstractmethod

import torch
from torch.nn import functional


class DeviceLinear(ABC):
    """y = x W^T + b for activations in the model's dtype, with float32 accumulation."""

    @abstractmethod
    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """[T, in_features] -> [T, out_features] in the dtype of `x`, freshly allocated."""

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """What the packed weights take on the device."""


class DenseLinear(DeviceLinear):
    """`weight` [out, in] in the activations' dtype; the vendor's matrix products."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight = weight
        self.bias = bias

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight, self.bias)

    @property
    def num_bytes(self) -> int:
        return int(self.weight.nbytes)
