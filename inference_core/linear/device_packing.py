"""Repacks a checkpoint's tensors to arrays for the weight cache, and loads these as layers on a device.

Arrays are NumPy's, since the cache maps them from disk: FP8 travels as its bytes, bfloat16 as uint16.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from inference_core.linear.device import DenseLinear, EightBitLinear, Int4Linear
from inference_core.linear.linear import Linear
from inference_core.loaders.group_codes import GROUP
from inference_core.loaders.packed_tensor import PackedTensor, dequantize
from inference_core.model_spec import DeviceScheme as DeviceScheme
from inference_core.triton_kernels.linear.eight_bit import (
    SCALE_BLOCK,
    EightBitWeight,
    quantize_blocks,
    quantize_channels,
)
from inference_core.triton_kernels.linear.int4_weight import KINDS, Int4Arrays, Int4Weight, pack_int4

LAYOUT = "device-linear-1"
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
