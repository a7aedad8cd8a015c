"""Bounds the structure of JSON from outside, before any reader builds its values.

A reader that recurses on each level answers a caller's error with a stack overflow, and so does each later step that
walks the value. Megabytes of empty arrays, of fields or of numbers such as 1e300, which take ten microseconds each,
hold up all other requests while they are read. All are therefore bounded once, where the text enters.
"""

import re
from collections.abc import Iterator
from typing import Any, Literal

import msgspec
import numpy as np

from classifier.native import KERNELS
from gateway.base.errors import ApiError, bad_request

MAX_DEPTH = 128
"""Levels of objects and arrays: a schema may have 100 (`inference_core.grammar.limits`), and stands some levels
down."""
MAX_CONTAINERS = 1 << 17
"""Objects and arrays in all: several times those of the longest conversation with the most tools."""
MAX_FIELDS = 1 << 18
"""Fields of all objects."""
MAX_EXPONENTS = 1 << 12
"""Numbers with an exponent."""
MAX_LONG_DIGITS = 1 << 17
"""Digits of integers and fractions that have sixteen or more, about."""

# Of a shorter text only brackets can be too many.
_SHORT = 1 << 15
# Fits a processor's cache with all that is derived from it. NumPy lets other threads run during each of its passes.
_PIECE = 1 << 16
_QUOTE, _COLON, _BACKSLASH, _POINT = b'":\\.'
# Digits of a number that counts as long.
_LONG = 16

_Bytes = np.ndarray[Any, np.dtype[np.uint8]]
_Flags = np.ndarray[Any, np.dtype[np.bool_]]

Excess = Literal["depth", "containers", "fields", "numbers"]
_EXCESSES: tuple[Excess | None, ...] = (None, "depth", "containers", "fields", "numbers")  # as a kernel numbers them
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)
# The name of a field that begins later is not looked for: reading takes a microsecond a token.
_SEARCHED_BYTES = 1 << 16
_LONGEST_NAME = 64
_ALLOWED: dict[Excess, str] = {
    "containers": f"{MAX_CONTAINERS} objects and arrays",
    "fields": f"{MAX_FIELDS} fields",
    "numbers": f"{MAX_EXPONENTS} numbers with exponents and {MAX_LONG_DIGITS} digits of long ones",
}


def json_excess(text: bytes) -> Excess | None:
    """Return which bound the JSON in `text` exceeds. Most texts have so few of these marks that it does not matter
    which are in strings, which a kernel sees anyway.

    Exact up to the first error in the JSON, beyond which no reader gets.
    """
    is_short = len(text) <= _SHORT
    if is_short and text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return None
    if KERNELS is not None:
        bounds = MAX_DEPTH, MAX_CONTAINERS, MAX_FIELDS, MAX_EXPONENTS, MAX_LONG_DIGITS
        number: int = KERNELS.json_excess(text, *bounds)
        return _EXCESSES[number]
    many_brackets, many_values = (True, False) if is_short else _are_many(text)
    if not many_brackets and not many_values:
        return None
    return _exact_excess(text, many_values)


def _pieces(text: bytes) -> Iterator[_Bytes]:
    numbers = np.frombuffer(text, np.uint8)
    return (numbers[start : start + _PIECE] for start in range(0, len(numbers), _PIECE))


def _are_many(text: bytes) -> tuple[bool, bool]:
    """Whether `text`, its strings included, has more brackets than a depth may be, and too many values."""
    containers, values, many_values = 0, _Values(), False
    for piece in _pieces(text):
        containers += int(np.count_nonzero(piece | 0x20 == ord("{")))
        many_values = many_values or values.excess_with(piece) is not None
    return containers > MAX_DEPTH, many_values


def _exact_excess(text: bytes, many_values: bool) -> Excess | None:
    """What is too many in `text` outside its strings; values are counted only if `many_values`."""
    strings, brackets, values = _Strings(), _Brackets(), _Values()
    excess: Excess | None = None
    for piece in _pieces(text):
        is_quote = strings.quotes_of(piece)
        marks = piece
        if not many_values:
            indexes = np.flatnonzero(is_quote | _is_bracket(piece))
            marks, is_quote = piece[indexes], is_quote[indexes]
        marks = strings.outside(marks, is_quote)
        if (exceeded := brackets.excess_with(marks)) is not None:
            return exceeded
        if many_values and excess is None:
            excess = values.excess_with(marks)
    return excess


def _is_bracket(piece: _Bytes) -> _Flags:
    # [ and { differ in one bit, as ] and } do.
    kinds = piece | 0x20
    is_bracket: _Flags = (kinds == ord("{")) | (kinds == ord("}"))
    return is_bracket


class _Strings:
    """Leaves out the strings of JSON that comes in pieces."""

    def __init__(self) -> None:
        self._is_escaped = False
        self._is_inside = np.uint8(0)

    def quotes_of(self, piece: _Bytes) -> _Flags:
        """Where the next piece has quotes that begin or end a string."""
        is_quote: _Flags = piece == _QUOTE
        backslashes = np.flatnonzero(piece == _BACKSLASH)
        if self._is_escaped:
            is_quote[0] = False
            if len(backslashes) and backslashes[0] == 0:
                backslashes = backslashes[1:]
        self._is_escaped = False
        if len(backslashes):
            # Of a run of backslashes each second one is escaped, and an odd one escapes what follows.
            begins = np.flatnonzero(np.diff(backslashes, prepend=-2) != 1)
            lengths = np.diff(begins, append=len(backslashes))
            escaped = (backslashes[begins] + lengths)[lengths % 2 == 1]
            if len(escaped) and escaped[-1] == len(piece):
                self._is_escaped = True
                escaped = escaped[:-1]
            is_quote[escaped] = False
        return is_quote

    def outside(self, marks: _Bytes, is_quote: _Flags) -> _Bytes:
        """Return those of the piece's `marks` that are in no string; of strings their opening quotes are left."""
        if not len(marks):
            return marks
        # Parity survives the overflow of eight bits.
        parity = np.cumsum(is_quote, dtype=np.uint8)
        parity += self._is_inside
        parity &= 1
        self._is_inside = parity[-1]
        is_inside = parity.view(np.bool_)
        np.logical_xor(is_inside, is_quote, out=is_inside)
        return marks[~is_inside]


class _Brackets:
    """Counts the levels and containers of JSON that comes in pieces, without its strings."""

    def __init__(self) -> None:
        self._depth = self._containers = 0

    def excess_with(self, piece: _Bytes) -> Excess | None:
        """What is too many with the next piece."""
        brackets = piece[_is_bracket(piece)]
        if not len(brackets):
            return None
        is_opening = (brackets | 0x20 == ord("{")).astype(np.int32)
        levels = np.cumsum(2 * is_opening - 1) + self._depth
        self._containers += int(is_opening.sum())
        if levels.max() > MAX_DEPTH:
            return "depth"
        if self._containers > MAX_CONTAINERS:
            return "containers"
        self._depth = int(levels[-1])
        return None


class _Values:
    """Counts the fields and the costly numbers of JSON that comes in pieces."""

    def __init__(self) -> None:
        self._fields = self._exponents = self._long_digits = 0
        self._last = np.zeros(0, np.uint8)

    def excess_with(self, piece: _Bytes) -> Excess | None:
        """What is too many with the next piece."""
        self._fields += int(np.count_nonzero(piece == _COLON))
        if self._fields > MAX_FIELDS:
            return "fields"
        # A number may go on from the piece before.
        before = len(self._last)
        marks = np.concatenate((self._last, piece))
        self._last = marks[max(len(marks) - _LONG + 1, 0) :].copy()
        is_digit = (marks - ord("0")) < 10
        if not is_digit.any():
            return None
        recent = max(before - 2, 0)
        self._exponents += _exponents(marks[recent:], is_digit[recent:])
        run = is_digit
        for shift in (1, 2, 4, 8):
            run = run[:-shift] & run[shift:]
        self._long_digits += int(np.count_nonzero(run))
        too_many = self._exponents > MAX_EXPONENTS or self._long_digits > MAX_LONG_DIGITS
        return "numbers" if too_many else None


def _exponents(marks: _Bytes, is_digit: _Flags) -> int:
    """How many of `marks`, but for the first and the last, are an e behind a digit or a point."""
    is_exponent = ((marks[1:-1] | 0x20) == ord("e")) & (is_digit[:-2] | (marks[:-2] == _POINT))
    return int(np.count_nonzero(is_exponent))


def structure_refusal(body: bytes, excess: Excess) -> ApiError:
    """The 400 for JSON that is nested too deeply or has too many values that take long to read."""
    name = _excessive_field(body)
    what = "The body" if name is None else name
    if excess == "depth":
        return bad_request(f"{what} is nested too deeply: a body may have {MAX_DEPTH} levels.", name, "invalid_json")
    return bad_request(f"{what} has too many values: a body may have {_ALLOWED[excess]}.", name, "array_too_long")


def _excessive_field(body: bytes) -> str | None:
    """Return the body's field in which the nesting exceeds its bound, or that goes on after what is searched; None if
    neither is clear. Without recursion."""
    depth, text, field = 0, b'""', b'""'
    for token in _TOKEN.findall(body[:_SEARCHED_BYTES]):
        if token[:1] == b'"':
            text = token
        elif token in b"]}":
            depth -= 1
            field = b'""' if depth == 1 else field
        else:
            depth += 1
            if depth == 2:
                field = text
            elif depth > MAX_DEPTH:
                break
    try:
        return msgspec.json.decode(field, type=str)[:_LONGEST_NAME] or None
    except (ValueError, msgspec.MsgspecError):
        return None
