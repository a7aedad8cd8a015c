"""Linear layers on a device: dense weights by torch, 4-bit and 8-bit weights by the project's custom ops.

A checkpoint's tensors are repacked to arrays for the weight cache, and loaded from these. Arrays are NumPy's, since the
cache maps them from disk: FP8 travels as its bytes, bfloat16 as uint16. The experts of a layer are one projection of
all of them, over rows that are sorted by expert.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from inference_core.linear.linear import Linear
from inference_core.loaders.packed_tensor import GROUP, PackedTensor, dequantize
from inference_core.model_spec import DeviceScheme as DeviceScheme
from inference_core.triton_kernels.ops import Activations, ExpertRows, eight_bit_linear, int4_linear
from inference_core.triton_kernels.reference import dequantized_int4
from inference_core.triton_kernels.weights import (
    KINDS,
    MOST_QUANTIZED_INPUTS,
    SCALE_BLOCK,
    EightBitWeight,
    Int4Arrays,
    Int4Weight,
    dense_linear,
    pack_int4,
    quantize_blocks,
    quantize_channels,
)


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
    """INT8 or FP8 weights on dynamically quantised activations (W8A8).

    `takes`: the dtype of the codes if it takes `QuantizedRows` too, which the operation before it can write; None with
    scales per block, or rows too long for those kernels.
    """

    batch_invariant = False

    def __init__(self, weight: EightBitWeight, bias: torch.Tensor | None) -> None:
        self.weight = weight
        self.bias = bias
        self.out_features, self.in_features = weight.codes.shape
        fused = not weight.blockwise and self.in_features <= MOST_QUANTIZED_INPUTS
        self.takes: torch.dtype | None = weight.codes.dtype if fused else None

    def apply(self, x: Activations, out: torch.Tensor, *, accumulate: bool = False) -> None:
        eight_bit_linear(x, self.weight, self.bias, out, accumulate=accumulate)


class ExpertLinear(ABC):
    """y = x W_e^T for the rows of each expert e, in the activations' dtype. Rows do not affect each other."""

    in_features: int
    out_features: int
    tensors: tuple[torch.Tensor, ...]
    """The tensors that it holds on the device."""

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


LAYOUT = "device-linear-2"
PACKED_PARTS = ("weight", "codes", "scales", "offsets")  # what `pack_device` may return
_STORED = ("S8", "F8")
Arrays = Mapping[str, NDArray[Any]]


def device_scheme(tensor: PackedTensor, wanted: DeviceScheme) -> DeviceScheme:
    """`wanted`, or "dense" if the file has no 4-bit groups: weights are never rounded to 4 bits at load."""
    if wanted == "int4" and (tensor.kind not in KINDS or tensor.shape[1] % GROUP):
        return "dense"
    return wanted


def pack_device(tensor: PackedTensor, scheme: DeviceScheme, dtype: torch.dtype) -> dict[str, NDArray[Any]]:
    """Pack `tensor` [N, K] under a scheme of `device_scheme`; dense arrays have `dtype`, the activations'.

    INT8 or FP8 codes of the file are kept if the kernels support the shape of their scales, whichever 8-bit scheme is
    requested. Raises ModelFileError for scales that float16 cannot hold.
    """
    if scheme == "int4":
        packed = pack_int4(tensor)
        arrays: dict[str, NDArray[Any]] = {"codes": packed.codes, "scales": packed.scales}
        return arrays if packed.offsets is None else arrays | {"offsets": packed.offsets}
    stored = _stored_codes(tensor) if scheme != "dense" else None
    if stored is not None:
        return stored
    weight = torch.from_numpy(np.array(dequantize(tensor), np.float32))
    if scheme == "dense":
        return {"weight": _bits(weight.to(dtype))}
    if scheme == "fp8-blocks":
        eight = quantize_blocks(weight)
    else:
        eight = quantize_channels(weight, torch.int8 if scheme == "int8" else torch.float8_e4m3fn)
    return {"codes": _bits(eight.codes), "scales": eight.scales.numpy()}


def _stored_codes(tensor: PackedTensor) -> dict[str, NDArray[Any]] | None:
    """The file's own 8-bit codes with a scale per output, or for FP8 per 128 x 128; None for any other scales."""
    if tensor.kind not in _STORED:
        return None
    blocks = tensor.blocks.reshape(tensor.shape[0], -1)
    scales, codes = blocks["d"], np.ascontiguousarray(blocks["codes"].reshape(tensor.shape))
    if (scales == scales[:, :1]).all():
        return {"codes": codes, "scales": np.ascontiguousarray(scales[:, 0])}
    per_block = SCALE_BLOCK // GROUP
    corners = scales[::SCALE_BLOCK, ::per_block]
    spread = corners.repeat(SCALE_BLOCK, axis=0).repeat(per_block, axis=1)[: len(scales), : scales.shape[1]]
    if tensor.kind == "F8" and (scales == spread).all():
        return {"codes": codes, "scales": np.ascontiguousarray(corners)}
    return None


def load_device(
    arrays: Arrays,
    scheme: DeviceScheme,
    in_features: int,
    bias: torch.Tensor | None,
    device: torch.device | str,
    dtype: torch.dtype,
) -> Linear:
    """Load `pack_device`'s arrays on `device` as a layer with bias [N], for activations of `dtype`."""
    bias = None if bias is None else bias.to(device, dtype)
    if scheme == "int4":
        packed = Int4Arrays(arrays["codes"], arrays["scales"], arrays.get("offsets"))
        return Int4Linear(Int4Weight.load(packed, in_features, device), bias)
    if scheme == "dense":
        return DenseLinear(_tensor(arrays["weight"], dtype, device), bias)
    kind = torch.int8 if arrays["codes"].dtype == np.int8 else torch.float8_e4m3fn
    codes, scales = _tensor(arrays["codes"], kind, device), torch.tensor(arrays["scales"], device=device)
    return EightBitLinear(EightBitWeight(codes, scales), bias)


def _bits(values: torch.Tensor) -> NDArray[Any]:
    """As a NumPy array; dtypes that NumPy lacks as their raw bits."""
    if values.dtype == torch.bfloat16:
        bits: NDArray[Any] = values.view(torch.uint16).numpy()
        return bits
    if values.dtype == torch.float8_e4m3fn:
        return np.asarray(values.view(torch.uint8).numpy())
    return np.asarray(values.numpy())


def _tensor(bits: NDArray[Any], dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
    """The inverse of `_bits`, as a copy on the device."""
    return torch.tensor(bits, device=device).view(dtype)
