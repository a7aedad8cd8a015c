"""Refuses JSON whose structure is beyond its bounds, naming the parameter that exceeds them."""

import msgspec

from gateway.errors import bad_request
from tiers.json_bounds import MAX_CONTAINERS, MAX_DEPTH, json_excess


def check_structure(body: bytes) -> None:
    """Raises `ApiError` 400 for JSON that is nested too deeply or holds too many objects and arrays."""
    excess = json_excess(body)
    if excess is None:
        return
    name = _excessive_field(body)
    what = "The body" if name is None else name[:64]
    if excess == "depth":
        raise bad_request(f"{what} is nested too deeply: a body may have {MAX_DEPTH} levels.", name, "invalid_json")
    raise bad_request(
        f"{what} has too many objects and arrays: a body may have {MAX_CONTAINERS}.", name, "array_too_long"
    )


def _excessive_field(body: bytes) -> str | None:
    """Return the first field that is beyond the bounds by itself; None if none is, or none can be told apart."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return None
    return next((name[:64] for name, value in fields.items() if json_excess(b"[%b]" % bytes(value))), None)
