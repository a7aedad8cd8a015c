"""From a checkpoint's tensor to a layer on a device: repacked once to arrays that a weight cache keeps, then loaded.

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
_STORED = ("S8", "F8")
Arrays = Mapping[str, NDArray[Any]]


def device_scheme(tensor: PackedTensor, wanted: DeviceScheme) -> DeviceScheme:
    """`wanted`, or "dense" for tensors whose file has no 4-bit groups: nothing is rounded to four bits here."""
    if wanted == "int4" and (tensor.kind not in KINDS or tensor.shape[1] % GROUP):
        return "dense"
    return wanted


def pack_device(tensor: PackedTensor, scheme: DeviceScheme, dtype: torch.dtype) -> dict[str, NDArray[Any]]:
    """Arrays of `tensor` [N, K] under a scheme that `device_scheme` named; dense ones are of `dtype`, the activations'.

    Codes of an INT8 or FP8 file are kept where their scales are of a shape that the kernels know, whichever scheme of
    8 bits is asked for. Raises ModelFileError for scales that float16 cannot hold.
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
    """The file's own codes of 8 bits with a scale per output, or for FP8 per 128 x 128; None if it has others."""
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
    """The layer of `pack_device`'s arrays on `device`, with its bias [N], for activations of `dtype`."""
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
    """As they are, but for dtypes that NumPy lacks."""
    if values.dtype == torch.bfloat16:
        bits: NDArray[Any] = values.view(torch.uint16).numpy()
        return bits
    if values.dtype == torch.float8_e4m3fn:
        return np.asarray(values.view(torch.uint8).numpy())
    return np.asarray(values.numpy())


def _tensor(bits: NDArray[Any], dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
    """The copy on the device of what `_bits` made."""
    return torch.tensor(bits, device=device).view(dtype)
