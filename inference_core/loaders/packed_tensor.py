"""A tensor in its file's encoding: kind, shape and bytes, not decoded."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from inference_core.loaders.gguf_format import ggml_blocks
from inference_core.loaders.huggingface import scaled_blocks, table_blocks, zero_point_blocks

Kind = Literal[
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "MXFP4",
    "Q4_Z", "Q8_Z", "Q_F16", "S8", "F8", "NF4", "FP4",
]  # fmt: skip
PLAIN_DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}
_FOLDERS_DTYPES = zero_point_blocks.BLOCK_DTYPES | scaled_blocks.BLOCK_DTYPES | table_blocks.BLOCK_DTYPES
BLOCK_DTYPES = ggml_blocks.BLOCK_DTYPES | _FOLDERS_DTYPES
BLOCK_ELEMENTS = ggml_blocks.BLOCK_ELEMENTS | dict.fromkeys(_FOLDERS_DTYPES, 32)
DECODERS = ggml_blocks.DECODERS | {
    "Q4_Z": zero_point_blocks.decode_q4_z,
    "Q8_Z": zero_point_blocks.decode_q8_z,
    "S8": scaled_blocks.decode_s8,
    "F8": scaled_blocks.decode_f8,
    "NF4": table_blocks.decode_nf4,
    "FP4": table_blocks.decode_fp4,
}


@dataclass(frozen=True, slots=True, eq=False)
class PackedTensor:
    """`shape` is the logical, row-major shape ([out features, in features] for a linear layer).

    `data` is read-only. Plain kinds hold it in `shape`: float32, float16, or for BF16 the raw bits as uint16.
    Quantised kinds hold uint8 [..., bytes per row]: rows can be taken or permuted without decoding, since blocks run
    along the last axis. Q4_Z and Q8_Z are for AWQ and GPTQ layers (`zero_point_blocks`); Q_F16 is float16,
    dequantised from codes whose groups are not runs of inputs; S8 and F8 are INT8 and E4M3 codes (`scaled_blocks`), NF4
    and FP4 those of bitsandbytes (`table_blocks`). `source`: the data, or a function that makes it on every access.
    """

    kind: Kind
    shape: tuple[int, ...]
    source: NDArray[Any] | Callable[[], NDArray[Any]]

    @property
    def data(self) -> NDArray[Any]:
        return self.source() if callable(self.source) else self.source

    @property
    def blocks(self) -> NDArray[np.void]:
        """The blocks of a quantised kind as a structured array [..., blocks per row] (see `ggml_blocks`)."""
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
    bits, given = values.view(np.uint32).reshape(-1), values.reshape(-1)
    rounded = np.empty(bits.shape, np.uint16)
    # In pieces that fit in the CPU cache, since rounding makes temporaries.
    for start in range(0, bits.size, _PIECE):
        piece = bits[start : start + _PIECE]
        # Half of the last place that stays, a little less where that place is even; NaN may overflow, and is set below.
        nearest = (piece >> 16) & 1
        nearest += 0x7FFF
        nearest += piece
        nearest >>= 16
        nan = np.isnan(given[start : start + _PIECE])
        if nan.any():
            nearest[nan] = piece[nan] >> 16 | 0x40
        rounded[start : start + _PIECE] = nearest
    return rounded.reshape(values.shape)
