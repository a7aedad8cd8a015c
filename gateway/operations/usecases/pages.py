"""Pages of lists of the database as a query asks for them, as JSON or as a file."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

from litestar.response import Response
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.base.errors import bad_request
from gateway.base.numbers import epoch_seconds, whole_number
from gateway.base.stores.database import reached
from gateway.edge.asgi import HttpRequest
from gateway.inference.service import serving_of
from gateway.operations.csv_export import csv_stream, head_of, lines_of, wants_csv
from gateway.tenancy.budgets.budget_commands import id_of
from quality.store.database import MOST_INTEGER
from quality.store.pages import MOST, Listing, Page, PageError

_BOUNDS: dict[str, type[float] | type[int] | type[str]] = {"since": float, "until": float, "cursor": str, "limit": int}
_KINDS = {"key_id": "key", "team_id": "team"}
USUAL_CSV_ROWS, MOST_CSV_ROWS = 10_000, 100_000


async def page_of(request: HttpRequest, listing: Listing) -> Response[Any]:
    """Return the page that the query asks for; with `format=csv` all of its rows up to `limit`, as a file. Raises
    `ApiError` 400 and 503."""
    given = dict(request.query_params)
    if wants_csv(given):
        return await _as_csv(request, listing, given)
    return Response(await page_asked_for(request, listing, given), media_type="application/json")


async def page_asked_for(request: HttpRequest, listing: Listing, query: dict[str, str] | None = None) -> Page:
    """As `page_of`, before it is written. `query`: by name, unless it is the request's own."""
    chosen, bounds = asked_for(listing, dict(request.query_params) if query is None else query)
    return await _found(request, listing, chosen, bounds)


def asked_for(listing: Listing, query: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a list's filters and bounds from a query. Raises `ApiError` 400."""
    left = dict(query)
    chosen = {name: _value(name, left.pop(name), listing.kind(name)) for name in listing.filters if name in left}
    bounds = {name: _value(name, left.pop(name), kind) for name, kind in _BOUNDS.items() if name in left}
    if left:
        allowed = ", ".join((*listing.filters, *_BOUNDS, "format"))
        raise bad_request(f"Unknown query parameter; allowed: {allowed}.", next(iter(left)))
    return chosen, bounds


async def _found(request: HttpRequest, listing: Listing, chosen: dict[str, Any], bounds: dict[str, Any]) -> Page:
    database = serving_of(request).database

    async def read() -> Page:
        return await listing.page(database, await _by_id(database, chosen), **bounds)

    try:
        return await reached(read())
    except PageError as error:
        raise bad_request(f"{error}.", error.param, "invalid_value") from error


async def _by_id(database: AsyncEngine, chosen: dict[str, Any]) -> dict[str, Any]:
    """Return the filters with the ids of keys and teams, which may be given by name."""
    named = chosen.keys() & _KINDS.keys()
    if not named:
        return chosen
    async with database.connect() as connection:
        ids = {column: await id_of(connection, _KINDS[column], chosen[column]) for column in named}
    return chosen | {column: found for column, found in ids.items() if found is not None}


async def _as_csv(request: HttpRequest, listing: Listing, given: dict[str, str]) -> Response[Any]:
    chosen, bounds = asked_for(listing, given)
    left: int = bounds.pop("limit", USUAL_CSV_ROWS)
    if not 1 <= left <= MOST_CSV_ROWS:
        allowed = f"it must lie between 1 and {MOST_CSV_ROWS}"
        raise bad_request(f"limit is {left}; {allowed}.", "limit", "invalid_value")
    # Errors are reported before the file starts; if the database fails later, the file is cut off.
    first = await _found(request, listing, chosen, bounds | {"limit": min(left, MOST)})

    async def chunks() -> AsyncIterator[str]:
        page, rows = first, left
        yield head_of(listing.columns)
        while True:
            yield lines_of(listing.columns, page.rows)
            rows -= len(page.rows)
            if page.next is None or rows <= 0:
                return
            page = await _found(request, listing, chosen, bounds | {"cursor": page.next, "limit": min(rows, MOST)})

    return csv_stream(listing.table.name, chunks())


def _value(name: str, given: str, kind: type[Any]) -> Any:
    if kind is int:
        return whole_number(given, name, -MOST_INTEGER, MOST_INTEGER)
    if kind is float:
        return epoch_seconds(given, name)
    # PostgreSQL can compare with no text that has it.
    if "\0" in given:
        raise bad_request(f"Invalid {name}: {given[:64]!r} contains NUL.", name, "invalid_value")
    return given
