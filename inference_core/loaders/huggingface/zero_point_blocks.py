"""Blocks of 32 4-bit weights with a zero point: what AWQ and GPTQ layers become, laid out as GGML lays out its own."""

import numpy as np
from numpy.typing import NDArray

from inference_core.loaders.gguf_format.ggml_blocks import Q4_0, Blocks, Floats, nibbles

ELEMENTS = 32
# value = d * (code - zero); codes 0-15 are the low halves of the bytes, 16-31 the high ones.
Q4_Z = np.dtype([("d", "<f2"), ("zero", "u1"), ("codes", "u1", (16,))])


def decode_q4_z(blocks: Blocks) -> Floats:
    """[n] blocks -> float32 [n, 32]."""
    codes = nibbles(blocks["codes"]).astype(np.float32) - blocks["zero"].astype(np.float32)[:, None]
    return blocks["d"].astype(np.float32)[:, None] * codes


def q4_0_blocks(codes: NDArray[np.uint8], scales: NDArray[np.float16]) -> Blocks:
    """The same as `q4_z_blocks` for zero points of 8, which GGML's Q4_0 need not store."""
    blocks = np.empty(scales.shape, Q4_0)
    halves = codes.reshape(*scales.shape, 2, ELEMENTS // 2)
    blocks["d"], blocks["codes"] = scales, halves[:, :, 0] | (halves[:, :, 1] << 4)
    return blocks


def q4_z_blocks(codes: NDArray[np.uint8], scales: NDArray[np.float16], zeros: NDArray[np.uint8]) -> Blocks:
    """Codes [rows, 32 n] with a scale and a zero point per 32 [rows, n] as blocks [rows, n]."""
    blocks = np.empty(scales.shape, Q4_Z)
    halves = codes.reshape(*scales.shape, 2, ELEMENTS // 2)
    blocks["d"], blocks["zero"] = scales, zeros
    blocks["codes"] = halves[:, :, 0] | (halves[:, :, 1] << 4)
    return blocks
