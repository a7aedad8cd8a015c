"""The character and word n-grams of a turn, as rows of two hashed tables: no vocabulary, any language."""

import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.uint16]

BITS = 16
ROWS = 1 << BITS
# Multiplicative hashing (Knuth, The Art of Computer Programming, vol. 3, 6.4): use the upper bits of the product.
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_PLACES = (np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9), np.uint64(1))
_SHIFT = np.uint64(64 - BITS)


def trigram_rows(turn: str) -> Rows:
    """Return rows [n] of the distinct character trigrams of `turn`, lower-cased and padded with spaces, ascending."""
    text = f" {turn.lower()} ".encode("utf-32-le", errors="replace")
    codes = np.frombuffer(text, np.uint32).astype(np.uint64)
    if len(codes) < 3:
        return np.zeros(0, np.uint16)
    return _distinct(codes[:-2] * _PLACES[0] + codes[1:-1] * _PLACES[1] + codes[2:] * _PLACES[2])


def word_rows(tokens: Sequence[str]) -> Rows:
    """Return rows [n] of the distinct words and pairs of neighbouring words among `tokens`, ascending."""
    if not tokens:
        return np.zeros(0, np.uint16)
    words = np.fromiter(map(zlib.crc32, map(str.encode, tokens)), np.uint64, len(tokens))
    pairs = words[:-1] * _PLACES[0] + words[1:] * _PLACES[1]
    return _distinct(np.concatenate((words, pairs)))


def _distinct(keys: npt.NDArray[np.uint64]) -> Rows:
    # numpy sorts 16-bit numbers by radix sort, which is faster than marking them in a table of all rows.
    rows = ((keys * _MULTIPLIER) >> _SHIFT).astype(np.uint16)
    rows.sort()
    first = np.empty(len(rows), np.bool_)
    first[0] = True
    np.not_equal(rows[1:], rows[:-1], out=first[1:])
    return rows[first]
