"""The query of OpenAI's lists: `after`, `limit`, `order`, and a list's own parameters; errors name the parameter."""

import re

import msgspec

from gateway.base.errors import ApiError, bad_request
from gateway.base.numbers import whole_number
from gateway.edge.asgi import HttpRequest

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_ORDERS = ("asc", "desc")


class OwnedQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The query of a list of what the caller owns."""

    after: str | None
    """The id of the last item of the previous page."""
    limit: int
    ascending: bool
    purpose: str | None = None
    """The purpose to list, if the list supports it."""


def owned_query(
    request: HttpRequest,
    *,
    most: int,
    default: int,
    order: bool = False,
    purpose: bool = False,
    ignored: tuple[str, ...] = (),
    after_name: str = "after",
) -> OwnedQuery:
    """Parse the query. Raises `ApiError` 400. `order`, `purpose`: whether the list supports these. `ignored`: names of
    parameters that it accepts and needs nothing of. `after_name`: the name of `after` there."""
    query = {name: value for name, value in dict(request.query_params).items() if name not in ignored}
    after = query.pop(after_name, None)
    if after is not None and not _ID.match(after):
        raise bad_request(f"Invalid {after_name}: {after[:64]!r} is not an id.", after_name, "invalid_value")
    limit = whole_number(query.pop("limit", str(default)), "limit", 1, most)
    direction = query.pop("order", "desc") if order else "desc"
    if direction not in _ORDERS:
        raise bad_request(f"Invalid order: {direction[:64]!r}; allowed are asc and desc.", "order", "invalid_value")
    wanted = query.pop("purpose", None) if purpose else None
    if wanted is not None and not _ID.match(wanted):
        raise bad_request(f"Invalid purpose: {wanted[:64]!r}.", "purpose", "invalid_value")
    if query:
        name = next(iter(query))
        raise bad_request(f"Unknown query parameter {name[:64]!r}.", name[:64], "unknown_parameter")
    return OwnedQuery(after=after, limit=limit, ascending=direction == "asc", purpose=wanted)


def is_id(text: str) -> bool:
    """Return whether it has the form of an id."""
    return _ID.match(text) is not None


def not_found(what: str, name: str) -> ApiError:
    """Return the error for what the tenant does not have, even if another tenant does."""
    return ApiError(404, f"No such {what}: {name[:64]!r}.", param=f"{what}_id", code=f"{what}_not_found")
