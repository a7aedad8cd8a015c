"""Refuses JSON whose structure is beyond its bounds, naming the parameter that exceeds them."""

import re

import msgspec

from gateway.errors import bad_request
from tiers.json_bounds import (
    MAX_CONTAINERS,
    MAX_DEPTH,
    MAX_EXPONENTS,
    MAX_FIELDS,
    MAX_LONG_DIGITS,
    Excess,
    json_excess,
)

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)
# The name of a field that begins later is not looked for: reading takes a microsecond a token.
_SEARCHED_BYTES = 1 << 16
_LONGEST_NAME = 64
_ALLOWED: dict[Excess, str] = {
    "containers": f"{MAX_CONTAINERS} objects and arrays",
    "fields": f"{MAX_FIELDS} fields",
    "numbers": f"{MAX_EXPONENTS} numbers with exponents and {MAX_LONG_DIGITS} digits of long ones",
}


def check_structure(body: bytes) -> None:
    """Raises `ApiError` 400 for JSON that is nested too deeply or has too many values that take long to read."""
    excess = json_excess(body)
    if excess is None:
        return
    name = _deep_field(body) if excess == "depth" else _large_field(body)
    what = "The body" if name is None else name
    if excess == "depth":
        raise bad_request(f"{what} is nested too deeply: a body may have {MAX_DEPTH} levels.", name, "invalid_json")
    raise bad_request(f"{what} has too many values: a body may have {_ALLOWED[excess]}.", name, "array_too_long")


def _deep_field(body: bytes) -> str | None:
    """Return the body's field in which the nesting exceeds its bound, without recursion."""
    depth, text, field = 0, b'""', b'""'
    for token in _TOKEN.findall(body[:_SEARCHED_BYTES]):
        if token[:1] == b'"':
            text = token
        elif token in b"]}":
            depth -= 1
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


def _large_field(body: bytes) -> str | None:
    """Return the body's first field that has too many values by itself."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return None
    found = (name for name, value in fields.items() if json_excess(b"[%b]" % bytes(value)) is not None)
    return next((name[:_LONGEST_NAME] for name in found), None)
