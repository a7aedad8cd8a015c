"""Bounds the structure of JSON from outside, before any reader builds its values.

A reader that recurses on each level answers a caller's error with a stack overflow, and so does each later step that
walks the value. A million empty arrays are as many objects, which hold up all other requests while they are made.
Both are therefore bounded once, where the text enters.
"""

from typing import Literal

import numpy as np

MAX_DEPTH = 128
"""Levels of objects and arrays: a schema may have 100 (`inference_core.grammar.limits`), and stands some levels
down."""
MAX_CONTAINERS = 1 << 15
"""Objects and arrays in all: several times those of the longest conversation with the most tools."""

_PIECE = 1 << 16
_QUOTE = ord('"')
_IRRELEVANT = bytes(set(range(256)) - set(b'"[]{}'))

Excess = Literal["depth", "containers"]


def json_excess(text: bytes) -> Excess | None:
    """Return which bound the JSON in `text` exceeds. Few texts have as many brackets: only they are read.

    Exact up to the first error in the JSON, beyond which no reader gets.
    """
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return None
    if b"\\" in text:
        text = text.replace(rb"\\", b"").replace(rb"\"", b"")
    marks = np.frombuffer(text.translate(None, _IRRELEVANT), np.uint8)
    is_quoted, depth, containers = False, 0, 0
    for start in range(0, len(marks), _PIECE):
        piece = marks[start : start + _PIECE]
        # Parity survives the overflow of eight bits.
        parity = np.cumsum(piece == _QUOTE, dtype=np.uint8) & 1
        brackets = piece[(parity == is_quoted) & (piece != _QUOTE)]
        is_quoted ^= bool(parity[-1])
        if not len(brackets):
            continue
        # [ and { have this bit, ] and } lack it.
        is_opening = (brackets & 2).astype(np.int32)
        levels = np.cumsum(is_opening - 1) + depth
        containers += int(is_opening.sum()) // 2
        if levels.max() > MAX_DEPTH:
            return "depth"
        if containers > MAX_CONTAINERS:
            return "containers"
        depth = int(levels[-1])
        if levels.min() < 0:
            return None
    return None
