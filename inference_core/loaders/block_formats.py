"""Quantised block formats: the memory layout of a block, and decoders of its codes.

GGML's are llama.cpp's (`ggml-common.h`); `gguf.quants` is the oracle in the tests. Each decoder takes blocks as a
structured array [n] and returns float32 [n, block elements].

The others are in-memory formats of checkpoints, in blocks of 32 weights: INT8 and FP8 with one float32 scale; 4 or 8
bits with a zero point, in GGML's style, for AWQ and GPTQ; 4 bits that name an entry of a table, for NF4 and FP4. The
tables are those of bitsandbytes: NF4 (Dettmers et al. 2023, "QLoRA", appendix E) holds the quantiles of a normal
distribution, FP4 a sign, two bits of exponent and one of mantissa, divided by the largest.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Blocks = NDArray[np.void]
Floats = NDArray[np.float32]

Q4_0 = np.dtype([("d", "<f2"), ("codes", "u1", (16,))])
Q4_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("codes", "u1", (16,))])
Q8_0 = np.dtype([("d", "<f2"), ("codes", "i1", (32,))])
Q5_0 = np.dtype([("d", "<f2"), ("fifth", "u1", (4,)), ("codes", "u1", (16,))])
Q5_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("fifth", "u1", (4,)), ("codes", "u1", (16,))])
Q4_K = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", (12,)), ("codes", "u1", (128,))])
Q5_K = np.dtype(
    [("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", (12,)), ("fifth", "u1", (32,)), ("codes", "u1", (128,))]
)
Q6_K = np.dtype([("low", "u1", (128,)), ("high", "u1", (64,)), ("scales", "i1", (16,)), ("d", "<f2")])

# Microscaling FP4 (Open Compute Project 2023): an exponent for 32 numbers of four bits.
MXFP4 = np.dtype([("exponent", "u1"), ("codes", "u1", (16,))])

BLOCK_DTYPES: dict[str, np.dtype[np.void]] = {
    "Q4_0": Q4_0, "Q4_1": Q4_1, "Q5_0": Q5_0, "Q5_1": Q5_1, "Q8_0": Q8_0, "Q4_K": Q4_K, "Q5_K": Q5_K, "Q6_K": Q6_K,
    "MXFP4": MXFP4,
}  # fmt: skip
BLOCK_ELEMENTS: dict[str, int] = {kind: 256 if kind.endswith("_K") else 32 for kind in BLOCK_DTYPES}


def nibbles(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """[n, b] bytes -> [n, 2b] 4-bit codes: the low halves of all bytes, then the high halves."""
    return np.concatenate([codes & 0x0F, codes >> 4], axis=-1)


def q4_k_scales(packed: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """[n, 12] bytes -> eight 6-bit scales and eight 6-bit minima, each [n, 8].

    Bytes 0-3 hold scales 0-3 and the top bits of scales 4-7; bytes 4-7 the same for minima; bytes 8-11 the low
    nibbles of scales 4-7 and, above them, of minima 4-7.
    """
    first, second, rest = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 0x3F, (rest & 0x0F) | ((first >> 6) << 4)], axis=1)
    minima = np.concatenate([second & 0x3F, (rest >> 4) | ((second >> 6) << 4)], axis=1)
    return scales, minima


def _column(values: NDArray[np.generic]) -> Floats:
    return values.astype(np.float32)[:, None]


def _decode_q4_0(blocks: Blocks) -> Floats:
    return _column(blocks["d"]) * (nibbles(blocks["codes"]).astype(np.float32) - np.float32(8))


def _decode_q4_1(blocks: Blocks) -> Floats:
    return _column(blocks["d"]) * nibbles(blocks["codes"]).astype(np.float32) + _column(blocks["m"])


def _five_bits(blocks: Blocks) -> Floats:
    """Codes [n, 32] of Q5_0 and Q5_1: bit i of the four bytes is the fifth bit of element i."""
    fifth = np.unpackbits(blocks["fifth"], axis=1, bitorder="little")
    return (nibbles(blocks["codes"]) | (fifth << np.uint8(4))).astype(np.float32)


def _decode_q5_0(blocks: Blocks) -> Floats:
    return _column(blocks["d"]) * (_five_bits(blocks) - np.float32(16))


def _decode_q5_1(blocks: Blocks) -> Floats:
    return _column(blocks["d"]) * _five_bits(blocks) + _column(blocks["m"])


def _decode_q8_0(blocks: Blocks) -> Floats:
    return _column(blocks["d"]) * blocks["codes"].astype(np.float32)


def q4_k_steps(blocks: Blocks) -> tuple[Floats, Floats]:
    """Scale and (signed) minimum [n, 8] per group of 32 of Q4_K and Q5_K blocks: value = scale * code + minimum."""
    scales, minima = q4_k_scales(blocks["scales"])
    step = _column(blocks["d"]) * scales.astype(np.float32)
    offset = _column(blocks["dmin"]) * minima.astype(np.float32)
    return step, -offset


def q4_k_codes(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """[n, 128] bytes -> 4-bit codes [n, 256]; of Q5_K blocks, the four low bits."""
    # Four runs of 32 bytes: each holds 32 low codes (even group) and then 32 high codes (odd group).
    return nibbles(codes.reshape(-1, 32)).reshape(-1, 256)


def _decode_q4_k(blocks: Blocks) -> Floats:
    return _scaled(q4_k_codes(blocks["codes"]), *q4_k_steps(blocks))


def _decode_q5_k(blocks: Blocks) -> Floats:
    # Bit g of byte i is the fifth bit of element i of group g.
    fifth = np.unpackbits(blocks["fifth"][:, :, None], axis=2, bitorder="little").transpose(0, 2, 1).reshape(-1, 256)
    return _scaled(q4_k_codes(blocks["codes"]) | (fifth << np.uint8(4)), *q4_k_steps(blocks))


def _scaled(codes: NDArray[np.uint8], step: Floats, minimum: Floats) -> Floats:
    return (step[:, :, None] * codes.reshape(-1, 8, 32) + minimum[:, :, None]).reshape(-1, 256)


def _decode_q6_k(blocks: Blocks) -> Floats:
    step = _column(blocks["d"]) * blocks["scales"].astype(np.float32)
    # Two halves of 128 elements; in each, 64 bytes of low nibbles and 32 bytes of four 2-bit high parts.
    low = nibbles(blocks["low"].reshape(-1, 64)).reshape(-1, 128)
    high_bytes = blocks["high"].reshape(-1, 32)
    high = np.concatenate([(high_bytes >> shift) & 0x03 for shift in (0, 2, 4, 6)], axis=1)
    codes = (low | (high << 4)).astype(np.float32).reshape(-1, 16, 16) - np.float32(32)
    return (step[:, :, None] * codes).reshape(-1, 256)


# Twice the values of the E2M1 codes: whole numbers.
_DOUBLED_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)


def mxfp4_codes(blocks: Blocks) -> tuple[NDArray[np.int8], Floats]:
    """[n] MXFP4 blocks as whole numbers of at most 12, int8 [n, 32], and what each block's are multiplied by, [n]."""
    return _DOUBLED_E2M1[nibbles(blocks["codes"])], np.ldexp(np.float32(1), blocks["exponent"].astype(np.int32) - 128)


def _decode_mxfp4(blocks: Blocks) -> Floats:
    codes, scale = mxfp4_codes(blocks)
    return codes.astype(np.float32) * scale[:, None]


DECODERS: dict[str, Callable[[Blocks], Floats]] = {
    "Q4_0": _decode_q4_0,
    "Q4_1": _decode_q4_1,
    "Q5_0": _decode_q5_0,
    "Q5_1": _decode_q5_1,
    "Q8_0": _decode_q8_0,
    "Q4_K": _decode_q4_k,
    "Q5_K": _decode_q5_k,
    "Q6_K": _decode_q6_k,
    "MXFP4": _decode_mxfp4,
}


ELEMENTS = 32
S8 = np.dtype([("d", "<f4"), ("codes", "i1", (ELEMENTS,))])
F8 = np.dtype([("d", "<f4"), ("codes", "u1", (ELEMENTS,))])
SCALED_DTYPES = {"S8": S8, "F8": F8}


def _e4m3_values() -> Floats:
    """float32 [256]: the values of the E4M3 codes (OCP, without infinities).

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
    """Pack codes [rows, 32 n], int8 or E4M3 as uint8, with a scale per 32 [rows, n], into blocks [rows, n]."""
    blocks = np.empty(scales.shape, S8 if codes.dtype == np.int8 else F8)
    blocks["d"], blocks["codes"] = scales, codes.reshape(*scales.shape, ELEMENTS)
    return blocks


# Element 2 i is in the high half of byte i, element 2 i + 1 in the low half, as in the files.
TABLE_BLOCK = np.dtype([("d", "<f4"), ("codes", "u1", (16,))])
TABLE_DTYPES = {"NF4": TABLE_BLOCK, "FP4": TABLE_BLOCK}

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
    return _decode_table(blocks, NF4)


def decode_fp4(blocks: Blocks) -> Floats:
    """[n] blocks -> float32 [n, 32]."""
    return _decode_table(blocks, FP4)


def _decode_table(blocks: Blocks, table: Floats) -> Floats:
    codes = np.stack([blocks["codes"] >> 4, blocks["codes"] & 0x0F], axis=-1).reshape(len(blocks), ELEMENTS)
    values: Floats = blocks["d"][:, None] * table[codes]
    return values


# value = d * (code - zero); codes 0-15 are the low halves of the bytes, 16-31 the high halves.
Q4_Z = np.dtype([("d", "<f2"), ("zero", "u1"), ("codes", "u1", (16,))])
Q8_Z = np.dtype([("d", "<f2"), ("zero", "u1"), ("codes", "u1", (ELEMENTS,))])
ZERO_POINT_DTYPES = {"Q4_Z": Q4_Z, "Q8_Z": Q8_Z}


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
