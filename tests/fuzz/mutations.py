"""Mutations of inputs: some know nothing of a format, some keep JSON's structure."""

import json
from collections.abc import Sequence
from random import Random
from typing import Any

from tests.fuzz.hostile_values import RAW

_EDGES = [0, 1, 2, 127, 128, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
_BYTES = b"\x00\x01\t\n\r \"'()*,-./0:;<=>?@[\\]`{|}~\x7f\x80\xbf\xc3\xe2\xed\xf0\xfe\xff"
_TEXTS = ["", " ", "\x00", "a", "é", "\u2028", "\U0001f600", "0", "-1", "1e999", "NaN", "null", "../", "%s", "{{x}}"]
_NUMBER = b"0123456789"
_MARK = "@@raw %d@@"


def mutated(data: bytes, others: Sequence[bytes], words: Sequence[bytes], most: int, random: Random) -> bytes:
    """Return `data` after one to four accidents, at most `most` bytes; some are spliced in from `others`."""
    content = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 4))):
        _accident(content, others, words, most, random)
    return bytes(content[:most])


def stretched(data: bytes, most: int, random: Random) -> bytes:
    """Return `data` with a piece of it repeated until there are `most` bytes."""
    at = random.randrange(len(data) + 1)
    piece = data[at : at + random.choice((1, 1, 2, 4, 16, 64, len(data)))] or b"("
    return (data[:at] + piece * ((most - len(data)) // len(piece)) + data[at:])[:most]


def _accident(content: bytearray, others: Sequence[bytes], words: Sequence[bytes], most: int, random: Random) -> None:
    at = random.randrange(len(content) + 1)
    kind = random.choices(_KINDS, _WEIGHTS)[0]
    if kind == "flip" and content:
        content[at % len(content)] ^= 1 << random.randrange(8)
    elif kind == "byte" and content:
        content[at % len(content)] = random.choice(_BYTES)
    elif kind == "insert":
        content[at:at] = bytes(random.choice(_BYTES) for _ in range(random.randint(1, 8)))
    elif kind == "number":
        size, order = random.choice((1, 2, 4, 8)), random.choice(("little", "big"))
        content[at : at + size] = (random.choice(_EDGES) % 2 ** (8 * size)).to_bytes(size, order)  # type: ignore[arg-type]
    elif kind == "digits":
        _number(content, at, random)
    elif kind == "cut":
        del content[at:]
    elif kind == "lose":
        del content[at : at + random.randint(1, 64)]
    elif kind == "repeat":
        content[at:at] = content[at : at + random.randint(1, 64)]
    elif kind == "move":
        piece = content[at : at + random.randint(1, 64)]
        del content[at : at + len(piece)]
        to = random.randrange(len(content) + 1)
        content[to:to] = piece
    elif kind == "splice" and others:
        other = random.choice(others)
        start = random.randrange(len(other) + 1)
        content[at:] = other[start:]
    elif kind == "word" and words:
        word = random.choice(words)
        end = at + len(word) if random.random() < 0.5 else at
        content[at:end] = word


_KINDS = ("flip", "byte", "insert", "number", "digits", "cut", "lose", "repeat", "move", "splice", "word")
_WEIGHTS = (4, 4, 4, 3, 2, 1, 3, 3, 2, 3, 6)


def _number(content: bytearray, at: int, random: Random) -> None:
    """Replace the next decimal number by an extreme one."""
    while at < len(content) and content[at] not in _NUMBER:
        at += 1
    end = at
    while end < len(content) and content[end] in _NUMBER:
        end += 1
    if end > at:
        content[at:end] = random.choice(
            (b"0", b"1", b"-1", b"1e999", b"NaN", b"0.5", b"9" * 30, b"%d" % random.choice(_EDGES))
        )


def json_mutated(data: bytes, random: Random) -> bytes:
    """Return JSON with values replaced by hostile ones, lost, repeated, moved or nested; other bytes as they are."""
    try:
        root = [json.loads(data)]
    except (ValueError, RecursionError):
        return data
    put: list[str] = []
    for _ in range(random.choice((1, 1, 2, 3))):
        places: list[tuple[Any, Any]] = []
        _places(root, places)
        holder, key = random.choice(places)
        kind = random.choice(("value", "value", "value", "lose", "repeat", "swap", "nest", "list", "key", "text"))
        value = holder[key]
        if kind == "value":
            put.append(random.choice(RAW))
            holder[key] = _MARK % (len(put) - 1)
        elif kind == "lose" and holder is not root:
            del holder[key]
        elif kind == "repeat" and isinstance(value, list):
            holder[key] = value * random.choice((0, 2, 3))
        elif kind == "swap":
            other, name = random.choice(places)
            holder[key] = other[name]
        elif kind == "nest":
            holder[key] = random.choice(({"a": value}, [value], {"type": "object", "properties": {"a": value}}))
        elif kind == "list" and isinstance(value, dict):
            holder[key] = [value]
        elif kind == "key" and isinstance(holder, dict):
            holder[random.choice([*_TEXTS, str(key) + "_", *map(str, holder)])] = holder.pop(key)
        elif kind == "text" and isinstance(value, str):
            place = random.randrange(len(value) + 1)
            holder[key] = value[:place] + random.choice(_TEXTS) + value[place:]
    try:
        text = json.dumps(root[0])
    except (ValueError, RecursionError):
        return data
    for number, raw in enumerate(put):
        text = text.replace(f'"{_MARK % number}"', raw)
    return text.encode()


def json_lines_mutated(data: bytes, random: Random) -> bytes:
    """Return lines of JSON of which one is mutated."""
    lines = data.split(b"\n")
    place = random.randrange(len(lines))
    lines[place] = json_mutated(lines[place], random)
    return b"\n".join(lines)


def _places(value: Any, places: list[tuple[Any, Any]], depth: int = 0) -> None:
    if depth > 20 or len(places) > 2000:
        return
    keys = value if isinstance(value, dict) else range(len(value))
    for key in keys:
        places.append((value, key))
        if isinstance(value[key], dict | list):
            _places(value[key], places, depth + 1)
