"""Bounds the structure of JSON from outside, before any reader builds its values.

A reader that recurses on each level answers a caller's error with a stack overflow, and so does each later step that
walks the value. Megabytes of empty arrays, of fields or of numbers such as 1e300, which take ten microseconds each,
hold up all other requests while they are read. All are therefore bounded once, where the text enters.
"""

from typing import Any, Literal

import numpy as np

MAX_DEPTH = 128
"""Levels of objects and arrays: a schema may have 100 (`inference_core.grammar.limits`), and stands some levels
down."""
MAX_CONTAINERS = 1 << 15
"""Objects and arrays in all: several times those of the longest conversation with the most tools."""
MAX_FIELDS = 1 << 16
"""Fields of all objects."""
MAX_EXPONENTS = 1 << 12
"""Numbers with an exponent."""
MAX_LONG_DIGITS = 1 << 17
"""Digits of integers and fractions that have sixteen or more, about."""

# Of a shorter text only brackets can be too many.
_SHORT = 1 << 15
_PIECE = 1 << 16
_QUOTE, _COLON = ord('"'), ord(":")
_IS_BRACKET = np.zeros(256, np.bool_)
_IS_BRACKET[list(b"[]{}")] = True

_UNSTRUCTURED = bytes(set(range(256)) - set(b'"[]{}'))
_Bytes = np.ndarray[Any, np.dtype[np.uint8]]

Excess = Literal["depth", "containers", "fields", "numbers"]


def json_excess(text: bytes) -> Excess | None:
    """Return which bound the JSON in `text` exceeds. Most texts have so few of these marks that it does not
    matter which are in strings.

    Exact up to the first error in the JSON, beyond which no reader gets.
    """
    many_brackets = text.count(b"[") + text.count(b"{") > MAX_DEPTH
    many_others = len(text) > _SHORT and _field_excess(np.frombuffer(text, np.uint8)) is not None
    if not many_brackets and not many_others:
        return None
    if b"\\" in text:
        text = text.replace(rb"\\", b"").replace(rb"\"", b"")
    if not many_others:
        text = text.translate(None, _UNSTRUCTURED)
    marks = _outside_strings(np.frombuffer(text, np.uint8))
    return _bracket_excess(marks[_IS_BRACKET[marks]]) or (_field_excess(marks) if many_others else None)


def _outside_strings(text: _Bytes) -> _Bytes:
    """The bytes of `text`, which has no escapes, that are in no string; of strings their opening quotes are left."""
    is_quote = text == _QUOTE
    # Parity survives the overflow of eight bits.
    is_inside = (np.cumsum(is_quote, dtype=np.uint8) & 1).view(np.bool_)
    np.logical_xor(is_inside, is_quote, out=is_inside)
    return text[~is_inside]


def _bracket_excess(brackets: _Bytes) -> Excess | None:
    depth = containers = 0
    for start in range(0, len(brackets), _PIECE):
        # [ and { have this bit, ] and } lack it.
        is_opening = (brackets[start : start + _PIECE] & 2).astype(np.int32)
        levels = np.cumsum(is_opening - 1) + depth
        containers += int(is_opening.sum()) // 2
        if levels.max() > MAX_DEPTH:
            return "depth"
        if containers > MAX_CONTAINERS:
            return "containers"
        depth = int(levels[-1])
    return None


def _field_excess(marks: _Bytes) -> Excess | None:
    if np.count_nonzero(marks == _COLON) > MAX_FIELDS:
        return "fields"
    if len(marks) < 3:
        return None
    is_digit = (marks - ord("0")) < 10
    is_exponent = ((marks[1:-1] | 0x20) == ord("e")) & (is_digit[:-2] | (marks[:-2] == ord(".")))
    if np.count_nonzero(is_exponent) > MAX_EXPONENTS:
        return "numbers"
    run = is_digit
    for shift in (1, 2, 4, 8):
        run = run[:-shift] & run[shift:]
    return "numbers" if np.count_nonzero(run) > MAX_LONG_DIGITS else None
