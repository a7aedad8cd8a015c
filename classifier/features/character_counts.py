"""Count the characters of a text by kind, in one pass over its bytes."""

import string
from typing import NamedTuple

import numpy as np


class CharacterCounts(NamedTuple):
    """Bytes of a UTF-8 text by kind; every byte has one kind, and those beyond ASCII are `non_ascii`."""

    others: int
    questions: int
    exclamations: int
    line_breaks: int
    other_space: int
    dollars: int
    other_maths: int
    brackets: int
    digits: int
    quotes: int
    backslashes: int
    commas: int
    capitals: int
    non_ascii: int


_BYTES_OF: dict[str, bytes] = {
    "questions": b"?",
    "exclamations": b"!",
    "line_breaks": b"\n",
    "other_space": string.whitespace.replace("\n", "").encode(),
    "dollars": b"$",
    "other_maths": b"=+*/^<>%",
    "brackets": b"()[]{};",
    "digits": string.digits.encode(),
    "quotes": b"\"'`",
    "backslashes": b"\\",
    "commas": b",",
    "capitals": string.ascii_uppercase.encode(),
    "non_ascii": bytes(range(128, 256)),
}
_KINDS = len(CharacterCounts._fields)
_KIND_OF = bytearray(256)
for _name, _bytes in _BYTES_OF.items():
    for _byte in _bytes:
        _KIND_OF[_byte] = CharacterCounts._fields.index(_name)
KIND_TABLE = bytes(_KIND_OF)


def count_characters(utf8: bytes) -> CharacterCounts:
    """Count the characters of a UTF-8 text."""
    kinds = np.frombuffer(utf8.translate(KIND_TABLE), np.uint8)
    return CharacterCounts(*np.bincount(kinds, minlength=_KINDS).tolist())
