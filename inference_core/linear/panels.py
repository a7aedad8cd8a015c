"""Weight matrices repacked for the native kernels: panels of 16 output columns, groups of 32 inputs. No torch.

Layouts (`native/kernels_impl.h` reads them), per panel and in order of the inputs k:
- int4: per group 256 bytes of nibbles, then 16 scales and 16 minima as float16; w = scale * code + minimum.
  Byte 64 j + 4 n + b holds the codes of column n for k = 8 j + b (low) and k = 8 j + 4 + b (high).
- int4-centred: 16 scales as float16 of every group, zeros up to a multiple of 64 bytes, then the same nibbles;
  w = scale * (code - 8). A tenth less to read than int4, for weights without minima.
- int8: 16 scales as float16 of every group, zeros up to a multiple of 64 bytes, then 512 bytes of code + 128 per
  group, so that every vector lies in one cache line; w = scale * code.
- bfloat16: pairs of k for each of the 16 columns; float32: one k after another.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from inference_core.loaders.block_formats import mxfp4_codes
from inference_core.loaders.packed_tensor import GROUP, PackedTensor, dequantize, float32_to_bfloat16, group_scales
from inference_core.model_spec import Compute

PanelKind = Literal["int4", "int4-centred", "int8", "bfloat16", "float32"]
_T = TypeVar("_T", bound=np.generic)
LANES = 16
LAYOUT = "cpu-panels-4"
_PIECE_WEIGHTS = 1 << 18
ALIGNMENT = 64
# Q8_0, S8 and MXFP4 unchanged; the others rounded to 8 bits: Q8_Z with a step of at most two of its own, fewer bits
# with a sixteenth to a third of theirs.
_AS_INT8 = ("Q8_0", "Q5_0", "Q5_1", "Q5_K", "Q6_K", "MXFP4", "Q8_Z", "Q_F16", "S8", "F8", "NF4", "FP4")
# Scales and minima included, as laid out above.
BYTES_PER_WEIGHT: dict[PanelKind, float] = {
    "int4": 320 / 512,
    "int4-centred": 288 / 512,
    "int8": 544 / 512,
    "bfloat16": 2.0,
    "float32": 4.0,
}

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


def panel_kind(tensor: PackedTensor, compute: Compute) -> PanelKind:
    """How `tensor` is packed under `compute`: its own codes if a scheme exists for them, else dequantised.

    Never raises: inputs that are not a whole number of groups, or of pairs, fall back to wider types.
    """
    columns = tensor.shape[1]
    if compute in ("int4-int8", "int4") and columns % GROUP == 0:
        if tensor.kind == "Q4_0" and compute == "int4-int8":
            return "int4-centred"
        if tensor.kind in ("Q4_0", "Q4_1", "Q4_K", "Q4_Z"):
            return "int4"
        if tensor.kind in _AS_INT8 and compute == "int4-int8":
            return "int8"
    return "float32" if compute == "float32" or tensor.kind == "F32" else "bfloat16"


def pack(tensor: PackedTensor, kind: PanelKind) -> Bytes:
    """Panels uint8 [ceil(N / 16), panel bytes]; columns beyond N are zero. K must be even.

    Packed in pieces, since panels do not depend on one another: a whole vocabulary projection would leave the cache at
    every step of the packing.
    """
    packed = partial(_packed, kind=kind)
    return np.concatenate(list(map(packed, _pieces(tensor))))


def pack_columns(tensors: Iterable[PackedTensor], columns: list[int]) -> NDArray[np.float16]:
    """The weights of some inputs: float16 [ceil(N / 16), columns, 16] for the N outputs of all `tensors`."""
    rows = [dequantize(piece)[:, columns] for tensor in tensors for piece in _pieces(tensor)]
    weights = _pad_rows(np.concatenate(rows)).astype(np.float16)
    return np.ascontiguousarray(weights.reshape(-1, LANES, len(columns)).transpose(0, 2, 1))


def packing(tensor: PackedTensor, kind: PanelKind, pool: Executor) -> Callable[[], Bytes]:
    """Begin `pack` on the threads of `pool`; the result waits for it."""
    packed = pool.map(partial(_packed, kind=kind), _pieces(tensor))
    return lambda: np.concatenate(list(packed))


def _pieces(tensor: PackedTensor) -> list[PackedTensor]:
    columns = tensor.shape[1]
    rows = max(1, _PIECE_WEIGHTS // columns // LANES) * LANES
    datas = [tensor.data[start : start + rows] for start in range(0, tensor.shape[0], rows)]
    return [PackedTensor(tensor.kind, (len(data), columns), data) for data in datas]


def _packed(tensor: PackedTensor, kind: PanelKind) -> Bytes:
    if kind == "int4":
        return _pack_int4(tensor)
    if kind == "int4-centred":
        return _behind_scales(group_scales(tensor)[0], _nibbled(tensor))
    if kind == "int8":
        return _pack_int8(tensor)
    weights = _pad_rows(dequantize(tensor))
    # A word is what stays together when columns become neighbours: an input, or a pair of them.
    words = weights if kind == "float32" else float32_to_bfloat16(weights).view(np.uint32)
    panels = words.reshape(-1, LANES, words.shape[1]).transpose(0, 2, 1)
    return np.ascontiguousarray(panels).view(np.uint8).reshape(len(panels), -1)


def _pad_rows(rows: NDArray[_T]) -> NDArray[_T]:
    missing = -len(rows) % LANES
    return np.concatenate([rows, np.zeros((missing, *rows.shape[1:]), rows.dtype)]) if missing else rows


def _quads(codes: Bytes) -> NDArray[np.uint32]:
    """[N, K] -> [panels, 16, groups, 8]: for each group eight words of four inputs."""
    rows, columns = codes.shape
    return codes.view(np.uint32).reshape(rows // LANES, LANES, columns // GROUP, 8)


def _columns_side_by_side(words: NDArray[np.uint32]) -> Bytes:
    """[panels, 16, groups, n] -> bytes [panels, groups, n * 64]: vectors of one word of each column."""
    panels, _, groups, _ = words.shape
    return np.ascontiguousarray(words.transpose(0, 2, 3, 1)).view(np.uint8).reshape(panels, groups, -1)


def _halves(values: NDArray[np.floating[Any]]) -> Bytes:
    """[N, groups] -> float16 bytes [panels, groups, 32]."""
    padded = _pad_rows(values)
    panels = padded.reshape(-1, LANES, padded.shape[1]).transpose(0, 2, 1)
    return np.ascontiguousarray(panels.astype(np.float16, copy=False)).view(np.uint8)


def _nibbled(tensor: PackedTensor) -> Bytes:
    """The 4-bit codes of `tensor` as [panels, groups, 256] bytes of two codes."""
    # The low halves of a run of bytes are the codes before those of its high halves (`nibbles`), so no byte is taken
    # apart: of two words of four inputs, the low halves make one word and the high halves another.
    run = 32 if tensor.kind == "Q4_K" else 16
    codes = tensor.blocks["codes"]
    words = _pad_rows(codes).view("<u4").reshape(-1, LANES, codes.shape[1] * codes.shape[2] // run, run // 4)
    first, second = (np.ascontiguousarray(words[..., i::2].transpose(0, 2, 3, 1)) for i in (0, 1))
    low, high = np.uint32(0x0F0F0F0F), np.uint32(0xF0F0F0F0)
    pairs = np.stack([first & low | (second & low) << 4, first >> 4 & low | second & high], axis=2)
    return pairs.view(np.uint8).reshape(len(pairs), tensor.shape[1] // GROUP, -1)


def _behind_scales(scale: NDArray[np.floating[Any]], codes: Bytes) -> Bytes:
    """Panels: the scales [N, groups] of all groups, then the codes [panels, …]."""
    panels = len(codes)
    scales = _halves(scale).reshape(panels, -1)
    aligned = np.pad(scales, ((0, 0), (0, -scales.shape[1] % ALIGNMENT)))
    return np.concatenate([aligned, codes.reshape(panels, -1)], axis=1)


def _pack_int4(tensor: PackedTensor) -> Bytes:
    nibbled = _nibbled(tensor)
    scale, minimum = group_scales(tensor)
    return np.concatenate([nibbled, _halves(scale), _halves(minimum)], axis=2).reshape(len(nibbled), -1)


def int8_codes(tensor: PackedTensor) -> tuple[NDArray[np.int8], Floats]:
    """8-bit codes [N, K] and scales [N, groups]: those of a Q8_0, S8 or MXFP4 tensor, any other rounded to nearest."""
    rows, columns = tensor.shape
    if tensor.kind in ("Q8_0", "S8"):
        blocks = tensor.blocks.reshape(-1)
        scale = blocks["d"].astype(np.float32).reshape(rows, columns // GROUP)
        return blocks["codes"].reshape(rows, columns), scale
    if tensor.kind == "MXFP4":
        # Exact where 2^(exponent - 128) is a float16, from 2^-24 to 2^15; smaller weights, below 4e-7, may become 0.
        codes, scale = mxfp4_codes(tensor.blocks.reshape(-1))
        return codes.reshape(rows, columns), scale.reshape(rows, columns // GROUP)
    groups = dequantize(tensor).reshape(rows, columns // GROUP, GROUP)
    scale = (np.abs(groups).max(axis=2) / np.float32(127)).astype(np.float16).astype(np.float32)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
    codes = np.rint(groups * inverse[:, :, None]).clip(-127, 127).astype(np.int8)
    return codes.reshape(rows, columns), scale


def _pack_int8(tensor: PackedTensor) -> Bytes:
    signed, scale = int8_codes(tensor)
    # With its sign bit turned over a code is itself plus 128.
    unsigned = _pad_rows(np.bitwise_xor(signed.view(np.uint8), np.uint8(128)))
    return _behind_scales(scale, _columns_side_by_side(_quads(unsigned)))
