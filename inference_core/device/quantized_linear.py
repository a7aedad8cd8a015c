"""Linear layers of 4-bit and 8-bit weights on a device, through the custom ops."""

import torch

from inference_core.device.linear import DeviceLinear
from inference_core.triton_kernels import linear_ops  # noqa: F401  registers the custom ops
from inference_core.triton_kernels.eight_bit import EightBitWeight
from inference_core.triton_kernels.int4_weight import Int4Weight


class Int4DeviceLinear(DeviceLinear):
    """W4A16: 4-bit groups times activations in their own dtype."""

    def __init__(self, weight: Int4Weight, bias: torch.Tensor | None) -> None:
        self.weight = weight
        self.bias = bias

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        w = self.weight
        out = x.new_empty(len(x), w.out_features)
        torch.ops.aio.int4_linear(out, x, w.codes, w.scales, w.offsets, self.bias, False)
        return out

    @property
    def num_bytes(self) -> int:
        w = self.weight
        return int(w.codes.nbytes + w.scales.nbytes + (0 if w.offsets is None else w.offsets.nbytes))


class EightBitDeviceLinear(DeviceLinear):
    """W8A8: INT8 or FP8 weights times activations that are rounded row by row as they come."""

    def __init__(self, weight: EightBitWeight, bias: torch.Tensor | None) -> None:
        self.weight = weight
        self.bias = bias

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        w = self.weight
        out = x.new_empty(len(x), len(w.codes))
        torch.ops.aio.eight_bit_linear(out, x, w.codes, w.scales, self.bias, False)
        return out

    @property
    def num_bytes(self) -> int:
        return int(self.weight.codes.nbytes + self.weight.scales.nbytes)
