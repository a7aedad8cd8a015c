"""GGML's quantised block formats: the memory layout of a block, and decoders of its codes.

The formats are llama.cpp's (`ggml-common.h`); `gguf.quants` is the oracle in the tests. Each decoder takes blocks as a
structured array [n] and returns float32 [n, block elements].
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
