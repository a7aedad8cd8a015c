"""Blocks of 32 8-bit weights with one float32 scale: what INT8 and FP8 layers of checkpoints become."""

import numpy as np
from numpy.typing import NDArray

from inference_core.loaders.gguf_format.ggml_blocks import Blocks, Floats

ELEMENTS = 32
S8 = np.dtype([("d", "<f4"), ("codes", "i1", (ELEMENTS,))])
F8 = np.dtype([("d", "<f4"), ("codes", "u1", (ELEMENTS,))])
BLOCK_DTYPES = {"S8": S8, "F8": F8}


def _e4m3_values() -> Floats:
    """float32 [256]: the numbers that the codes of E4M3 (OCP, without infinities) stand for.

    Micikevicius et al. 2022, "FP8 formats for deep learning": bias 7, subnormals, NaN at 0x7f and 0xff.
    """
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    magnitude = np.where(exponent > 0, (8 + mantissa) * 2.0 ** (exponent - 10.0), mantissa * 2.0**-9)
    magnitude[(codes & 0x7F) == 0x7F] = np.nan
    return np.where(codes < 128, magnitude, -magnitude).astype(np.float32)


E4M3 = _e4m3_values()


def decode_s8(blocks: Blocks) -> Floats:
    """[n] blocks -> float32 [n, 32]."""
    values: Floats = blocks["d"][:, None] * blocks["codes"].astype(np.float32)
    return values


def decode_f8(blocks: Blocks) -> Floats:
    """[n] blocks -> float32 [n, 32]."""
    values: Floats = blocks["d"][:, None] * E4M3[blocks["codes"]]
    return values


def scaled_blocks(codes: NDArray[np.generic], scales: Floats) -> Blocks:
    """Codes [rows, 32 n], int8 or E4M3 as uint8, with a scale per 32 [rows, n], as blocks [rows, n]."""
    blocks = np.empty(scales.shape, S8 if codes.dtype == np.int8 else F8)
    blocks["d"], blocks["codes"] = scales, codes.reshape(*scales.shape, ELEMENTS)
    return blocks
