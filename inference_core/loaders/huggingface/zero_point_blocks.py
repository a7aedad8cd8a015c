"""Blocks of 32 weights of 4 or 8 bits with a zero point, in GGML's style: what AWQ and GPTQ layers are in memory."""

import numpy as np
from numpy.typing import NDArray

from inference_core.loaders.gguf_format.ggml_blocks import Q4_0, Blocks, Floats, nibbles

ELEMENTS = 32
# value = d * (code - zero); codes 0-15 are the low halves of the bytes, 16-31 the high halves.
Q4_Z = np.dtype([("d", "<f2"), ("zero", "u1"), ("codes", "u1", (16,))])
Q8_Z = np.dtype([("d", "<f2"), ("zero", "u1"), ("codes", "u1", (ELEMENTS,))])
BLOCK_DTYPES = {"Q4_Z": Q4_Z, "Q8_Z": Q8_Z}


def decode_q4_z(blocks: Blocks) -> Floats:
    """[n] blocks -> float32 [n, 32]."""
    codes = nibbles(blocks["codes"]).astype(np.float32) - blocks["zero"].astype(np.float32)[:, None]
    return blocks["d"].astype(np.float32)[:, None] * codes


def decode_q8_z(blocks: Blocks) -> Floats:
    """[n] blocks -> float32 [n, 32]."""
    codes = blocks["codes"].astype(np.float32) - blocks["zero"].astype(np.float32)[:, None]
    values: Floats = blocks["d"].astype(np.float32)[:, None] * codes
    return values


def q4_0_blocks(codes: NDArray[np.uint8], scales: NDArray[np.float16]) -> Blocks:
    """As `q4_z_blocks` for zero points of 8, which GGML's Q4_0 implies."""
    blocks = np.empty(scales.shape, Q4_0)
    halves = codes.reshape(*scales.shape, 2, ELEMENTS // 2)
    blocks["d"], blocks["codes"] = scales, halves[:, :, 0] | (halves[:, :, 1] << 4)
    return blocks


def q4_z_blocks(codes: NDArray[np.uint8], scales: NDArray[np.float16], zeros: NDArray[np.uint8]) -> Blocks:
    """Pack codes [rows, 32 n] with a scale and a zero point per 32 [rows, n] into blocks [rows, n]."""
    blocks = np.empty(scales.shape, Q4_Z)
    halves = codes.reshape(*scales.shape, 2, ELEMENTS // 2)
    blocks["d"], blocks["zero"] = scales, zeros
    blocks["codes"] = halves[:, :, 0] | (halves[:, :, 1] << 4)
    return blocks


def q8_z_blocks(codes: NDArray[np.uint8], scales: NDArray[np.float16], zeros: NDArray[np.uint8]) -> Blocks:
    """As `q4_z_blocks` for codes of 8 bits."""
    blocks = np.empty(scales.shape, Q8_Z)
    blocks["d"], blocks["zero"], blocks["codes"] = scales, zeros, codes.reshape(*scales.shape, ELEMENTS)
    return blocks
