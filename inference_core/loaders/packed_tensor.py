"""A tensor in its file's encoding: kind, shape and bytes, not decoded.

Parts are cut along rows and columns without decoding or copying the rest. Kernels read the 4-bit codes of a stored
matrix with one scale and one minimum per group of 32 inputs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from inference_core.errors import ModelFileError
from inference_core.loaders import block_formats
from inference_core.loaders.block_formats import nibbles, q4_k_codes, q4_k_steps

Kind = Literal[
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "MXFP4",
    "Q4_Z", "Q8_Z", "Q_F16", "S8", "F8", "NF4", "FP4",
]  # fmt: skip
PLAIN_DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}
_FOLDERS_DTYPES = block_formats.ZERO_POINT_DTYPES | block_formats.SCALED_DTYPES | block_formats.TABLE_DTYPES
BLOCK_DTYPES = block_formats.BLOCK_DTYPES | _FOLDERS_DTYPES
BLOCK_ELEMENTS = block_formats.BLOCK_ELEMENTS | dict.fromkeys(_FOLDERS_DTYPES, 32)
DECODERS = block_formats.DECODERS | {
    "Q4_Z": block_formats.decode_q4_z,
    "Q8_Z": block_formats.decode_q8_z,
    "S8": block_formats.decode_s8,
    "F8": block_formats.decode_f8,
    "NF4": block_formats.decode_nf4,
    "FP4": block_formats.decode_fp4,
}


@dataclass(frozen=True, slots=True, eq=False)
class PackedTensor:
    """A tensor as a file holds it.

    Plain kinds hold `data` in `shape`: float32, float16, or for BF16 the raw bits as uint16. Quantised kinds hold uint8
    [..., bytes per row]: rows can be taken or permuted without decoding, since blocks run along the last axis. Q4_Z and
    Q8_Z are for AWQ and GPTQ layers (`zero_point_blocks`); Q_F16 is float16, dequantised from codes whose groups are
    not runs of inputs; S8 and F8 are INT8 and E4M3 codes (`scaled_blocks`), NF4 and FP4 those of bitsandbytes
    (`table_blocks`).
    """

    kind: Kind
    shape: tuple[int, ...]
    """The logical, row-major shape ([out features, in features] for a linear layer)."""
    source: NDArray[Any] | Callable[[], NDArray[Any]]
    """The read-only data, or a function that makes it on every access."""

    @property
    def data(self) -> NDArray[Any]:
        return self.source() if callable(self.source) else self.source

    @property
    def blocks(self) -> NDArray[np.void]:
        """The blocks of a quantised kind as a structured array [..., blocks per row] (see `block_formats`)."""
        return np.ascontiguousarray(self.data).view(BLOCK_DTYPES[self.kind])


# Elements that are converted at a time.
_PIECE = 1 << 18


def row_bytes(kind: Kind, columns: int) -> int | None:
    """Bytes of one row of `columns` elements; None if the row is not a whole number of blocks."""
    if kind in PLAIN_DTYPES:
        return columns * PLAIN_DTYPES[kind].itemsize
    blocks, rest = divmod(columns, BLOCK_ELEMENTS[kind])
    return None if rest else blocks * BLOCK_DTYPES[kind].itemsize


def dequantize(tensor: PackedTensor) -> NDArray[np.float32]:
    """The tensor's exact values as a new or borrowed float32 array of `tensor.shape`."""
    if tensor.kind == "F32":
        return tensor.data.reshape(tensor.shape)
    if tensor.kind in ("F16", "Q_F16"):
        return tensor.data.astype(np.float32).reshape(tensor.shape)
    if tensor.kind == "BF16":
        return bfloat16_to_float32(tensor.data).reshape(tensor.shape)
    decode = DECODERS[tensor.kind]
    blocks = tensor.blocks.reshape(-1)
    values = np.empty((blocks.size, BLOCK_ELEMENTS[tensor.kind]), np.float32)
    # In pieces that fit in the CPU cache, since decoding makes several temporaries.
    piece = _PIECE // BLOCK_ELEMENTS[tensor.kind]
    for start in range(0, blocks.size, piece):
        values[start : start + piece] = decode(blocks[start : start + piece])
    return values.reshape(tensor.shape)


def bfloat16_to_float32(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """bfloat16 is the upper half of a float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def float32_to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of the nearest bfloat16, ties to even; NaN stays NaN."""
    values = np.ascontiguousarray(values, np.float32)
    bits, flat = values.view(np.uint32).reshape(-1), values.reshape(-1)
    rounded = np.empty(bits.shape, np.uint16)
    # In pieces that fit in the CPU cache, since rounding makes temporaries.
    for start in range(0, bits.size, _PIECE):
        piece = bits[start : start + _PIECE]
        # Half of the last place that stays, a little less where that place is even; NaN may overflow, and is set below.
        nearest = (piece >> 16) & 1
        nearest += 0x7FFF
        nearest += piece
        nearest >>= 16
        nan = np.isnan(flat[start : start + _PIECE])
        if nan.any():
            nearest[nan] = piece[nan] >> 16 | 0x40
        rounded[start : start + _PIECE] = nearest
    return rounded.reshape(values.shape)


def column_unit(tensor: PackedTensor) -> int:
    """Columns can be cut only at multiples of this: the elements of a quantised block, which share a scale."""
    return BLOCK_ELEMENTS.get(tensor.kind, 1)


def cut(tensor: PackedTensor, rows: range, columns: range | None = None) -> PackedTensor:
    """The part [rows, columns] of a matrix, or [rows] of a vector; a view if the tensor is one.

    Raises ModelFileError if the part is outside the tensor, or if a column boundary is inside a quantised block.
    """
    whole = range(tensor.shape[-1])
    taken = whole if columns is None else columns
    if not 0 <= rows.start <= rows.stop <= tensor.shape[0] or not 0 <= taken.start <= taken.stop <= whole.stop:
        raise ModelFileError(f"rows {rows} and columns {taken} lie outside of a tensor of shape {tensor.shape}")
    if columns is None or len(tensor.shape) == 1:
        return PackedTensor(tensor.kind, (len(rows), *tensor.shape[1:]), lambda: tensor.data[rows.start : rows.stop])
    unit = column_unit(tensor)
    if taken.start % unit or taken.stop % unit:
        raise ModelFileError(f"columns {taken} cut blocks of {unit} weights that share a scale ({tensor.kind})")
    begin, end = (_data_columns(tensor, border) for border in (taken.start, taken.stop))
    return PackedTensor(tensor.kind, (len(rows), len(taken)), lambda: tensor.data[rows.start : rows.stop, begin:end])


def stack(tensors: Sequence[PackedTensor]) -> PackedTensor:
    """Concatenate tensors of one kind and width by rows; the data is copied on access."""
    if len(tensors) == 1:
        return tensors[0]
    shape = (sum(t.shape[0] for t in tensors), *tensors[0].shape[1:])
    return PackedTensor(tensors[0].kind, shape, lambda: np.concatenate([t.data for t in tensors]))


def _data_columns(tensor: PackedTensor, columns: int) -> int:
    """Columns of the stored array that hold the first `columns` weights of a row."""
    if tensor.kind not in BLOCK_ELEMENTS:
        return columns
    size = row_bytes(tensor.kind, columns)
    assert size is not None  # the caller checked that these are whole blocks
    return size


GROUP = 32


@dataclass(frozen=True, slots=True)
class GroupCodes:
    """w[n, 32 g + i] = scale[n, g] * codes[n, 32 g + i] + minimum[n, g]; codes uint8 [N, K], 0..15."""

    codes: NDArray[np.uint8]
    scale: NDArray[np.float32]
    minimum: NDArray[np.float32]


def group_codes(tensor: PackedTensor) -> GroupCodes:
    """The 4-bit codes of a Q4_0, Q4_1, Q4_K or Q4_Z tensor with their scales and minima per group of 32."""
    stored = tensor.blocks.reshape(-1)["codes"]
    codes = q4_k_codes(stored) if tensor.kind == "Q4_K" else nibbles(stored)
    scale, minimum = group_scales(tensor)
    return GroupCodes(codes.reshape(tensor.shape), scale.astype(np.float32), minimum.astype(np.float32))


def group_scales(tensor: PackedTensor) -> tuple[NDArray[np.floating[Any]], NDArray[np.floating[Any]]]:
    """The scales and minima [N, groups] of the groups: float16 where the file has them so, else float32."""
    blocks = tensor.blocks.reshape(-1)
    if tensor.kind == "Q4_K":
        scale, minimum = q4_k_steps(blocks)
    elif tensor.kind == "Q4_1":
        scale, minimum = blocks["d"], blocks["m"]
    else:
        zero = blocks["zero"].astype(np.float32) if tensor.kind == "Q4_Z" else np.float32(8)
        scale, minimum = blocks["d"], -blocks["d"].astype(np.float32) * zero
    rows, columns = tensor.shape
    return scale.reshape(rows, columns // GROUP), minimum.reshape(rows, columns // GROUP)
