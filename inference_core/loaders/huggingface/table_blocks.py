"""Blocks of 32 weights of 4 bits that name an entry of a table: the in-memory format of NF4 and FP4 layers.

The tables are those of bitsandbytes: NF4 (Dettmers et al. 2023, "QLoRA", appendix E) holds the quantiles of a normal
distribution, FP4 a sign, two bits of exponent and one of mantissa, divided by the largest.
"""

import numpy as np

from inference_core.loaders.gguf_format.ggml_blocks import Blocks, Floats

ELEMENTS = 32
# Element 2 i is in the high half of byte i, element 2 i + 1 in the low half, as in the files.
TABLE_BLOCK = np.dtype([("d", "<f4"), ("codes", "u1", (16,))])
BLOCK_DTYPES = {"NF4": TABLE_BLOCK, "FP4": TABLE_BLOCK}

NF4: Floats = np.array(
    [
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
        -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
        0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
        0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ],
    np.float32,
)  # fmt: skip
_FP4_MAGNITUDES = np.array([0, 0.0625, 8, 12, 4, 6, 2, 3], np.float32) / np.float32(12)
FP4: Floats = np.concatenate([_FP4_MAGNITUDES, -_FP4_MAGNITUDES])
TABLES = {"NF4": NF4, "FP4": FP4}


def decode_nf4(blocks: Blocks) -> Floats:
    """[n] blocks -> float32 [n, 32]."""
    return _decode(blocks, NF4)


def decode_fp4(blocks: Blocks) -> Floats:
    """[n] blocks -> float32 [n, 32]."""
    return _decode(blocks, FP4)


def _decode(blocks: Blocks, table: Floats) -> Floats:
    codes = np.stack([blocks["codes"] >> 4, blocks["codes"] & 0x0F], axis=-1).reshape(len(blocks), ELEMENTS)
    values: Floats = blocks["d"][:, None] * table[codes]
    return values
