"""The refusal of JSON whose structure is beyond its bounds, which names the parameter that exceeds them."""

import re

import msgspec

from gateway.base.errors import ApiError, bad_request
from gateway.edge.json_bounds import MAX_CONTAINERS, MAX_DEPTH, MAX_EXPONENTS, MAX_FIELDS, MAX_LONG_DIGITS, Excess

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)
# The name of a field that begins later is not looked for: reading takes a microsecond a token.
_SEARCHED_BYTES = 1 << 16
_LONGEST_NAME = 64
_ALLOWED: dict[Excess, str] = {
    "containers": f"{MAX_CONTAINERS} objects and arrays",
    "fields": f"{MAX_FIELDS} fields",
    "numbers": f"{MAX_EXPONENTS} numbers with exponents and {MAX_LONG_DIGITS} digits of long ones",
}


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
