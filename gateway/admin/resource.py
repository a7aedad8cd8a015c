"""What every resource of the administration shares: pages of lists of the database as a query asks for them, as JSON
or as CSV for spreadsheets, in which no cell is a formula; the results of commands; names of keys and teams.
"""

import csv
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias, TypeVar

import msgspec
from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.response import Response, Stream
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.complexity.quality_setting import QUALITY_SETTINGS
from gateway.base.errors import ApiError, bad_request
from gateway.base.numbers import epoch_seconds, is_number, number, whole_number
from gateway.base.stores.database import reached
from gateway.edge.asgi import HttpRequest, Named
from gateway.inference.service import Serving
from gateway.operations.running import Operations, operations_of
from gateway.tenancy.admin_guard import actor_of
from gateway.tenancy.budgets.budget_commands import id_of
from gateway.tenancy.changes import Order, TenancyError, UnknownSubjectError
from migrations.tables.tenancy import api_keys, teams
from quality.store.database import MOST_INTEGER
from quality.store.pages import MOST, Listing, Page, PageError

T = TypeVar("T")
MEDIA_TYPE = "text/csv"
# What spreadsheets treat as the start of a formula (OWASP, CSV injection).
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, slots=True)
class AdminContext:
    """An administrator, and what may be administered."""

    actor: str
    """The administrator's id for the audit trail."""
    operations: Operations

    @property
    def serving(self) -> Serving:
        """What answers requests."""
        return self.operations.serving

    @property
    def database(self) -> AsyncEngine:
        """The database of all gateways."""
        return self.operations.serving.database

    async def run(self, command: Callable[[AsyncEngine, Order], Awaitable[T]], reason: str | None = None) -> T:
        """Return the result of a command, which applies in this process. Raises `ApiError`: 404, 400 for a time in the
        past, 409 for a conflict, 503 while the database is down."""
        tenancy = self.operations.access.tenancy
        order = Order(actor=self.actor, now=tenancy.clock.now(), reason=reason)
        try:
            done = await reached(command(self.database, order))
        except UnknownSubjectError as error:
            raise ApiError(404, f"{error}.", param=error.param, code="not_found") from error
        except TenancyError as error:
            if error.param == "expires_at":
                raise bad_request(f"{error}.", "terms.expires_at", "invalid_value") from error
            raise ApiError(409, f"{error}.", param=error.param, code="conflict") from error
        # It is carried out; if the database fails just now, polling will bring it.
        with suppress(SQLAlchemyError, OSError):
            await tenancy.directory.load()
        return done


def admin_context(request: HttpRequest) -> AdminContext:
    """Return the context of an administrator's request."""
    return AdminContext(actor_of(request), operations_of(request))


Admin: TypeAlias = Named[AdminContext]
AsCsv: TypeAlias = Named[bool]
"""Whether `format=csv` asks for a file."""


def json_or_csv(
    as_csv: bool,
    name: str,
    whole: Any,
    columns: Sequence[str],
    rows: Iterable[msgspec.Struct | Mapping[str, Any]],
) -> Response[Any]:
    """Return `whole` as JSON, or its `rows` as a file `name`.csv."""
    if not as_csv:
        return Response(whole, media_type="application/json")
    return csv_response(name, columns, (_mapping(row) for row in rows))


def csv_response(name: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Response[bytes]:
    """Return a file `name`.csv with the columns of these rows."""
    body = (head_of(columns) + lines_of(columns, rows)).encode()
    return Response(body, media_type=MEDIA_TYPE, headers=_headers(name))


def csv_stream(name: str, chunks: AsyncIterator[str]) -> Stream:
    """Return a file `name`.csv that is sent while it is generated."""
    return Stream(chunks, media_type=MEDIA_TYPE, headers=_headers(name))


def head_of(columns: Sequence[str]) -> str:
    """Return the line of names."""
    return _written([columns])


def lines_of(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Yield a line per row; a missing column is empty."""
    return _written([cell(row.get(name)) for name in columns] for row in rows)


def cell(value: Any) -> Any:
    """Return a number as it is; anything else as text, with a ' before what reads as a formula; structures as JSON."""
    if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        return value
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return f"'{text}" if text.startswith(_FORMULA) else text


def _mapping(row: msgspec.Struct | Mapping[str, Any]) -> Mapping[str, Any]:
    return msgspec.structs.asdict(row) if isinstance(row, msgspec.Struct) else row


def _written(rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()


def _headers(name: str) -> dict[str, str]:
    return {"content-disposition": f'attachment; filename="{name}.csv"', "cache-control": "no-store"}


_BOUNDS: dict[str, type[float] | type[int] | type[str]] = {"since": float, "until": float, "cursor": str, "limit": int}
_KINDS = {"key_id": "key", "team_id": "team"}
USUAL_CSV_ROWS, MOST_CSV_ROWS = 10_000, 100_000


def list_endpoint(
    path: str, listing: Listing, summary: str, says: str, *, name: str = "", opt: Mapping[str, Any] | None = None
) -> HTTPRouteHandler:
    """Return the endpoint of the page of a list that the query asks for; with `format=csv` of all of its rows up to
    `limit`, as a file. `says`: what people read of it; `name`: the operation's id, if it is not that of the path."""

    async def show(request: HttpRequest, admin: Admin, as_csv: AsCsv) -> Response[Page]:
        query = dict(request.query_params)
        if as_csv:
            return await _as_csv(admin.database, listing, query)
        return Response(await query_page(admin.database, listing, query), media_type="application/json")

    show.__name__, show.__doc__ = name or f"list_{path[1:]}", says
    return get(path, opt=opt, summary=summary)(show)


async def query_page(database: AsyncEngine, listing: Listing, query: Mapping[str, str]) -> Page:
    """Return the page that a query asks for. Raises `ApiError` 400 and 503."""
    chosen, bounds = asked_for(listing, query)
    return await _found(database, listing, chosen, bounds)


def asked_for(listing: Listing, query: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a list's filters and bounds from a query. Raises `ApiError` 400."""
    left = {name: value for name, value in query.items() if name != "format"}
    chosen = {name: _value(name, left.pop(name), listing.kind(name)) for name in listing.filters if name in left}
    bounds = {name: _value(name, left.pop(name), kind) for name, kind in _BOUNDS.items() if name in left}
    if left:
        allowed = ", ".join((*listing.filters, *_BOUNDS, "format"))
        raise bad_request(f"Unknown query parameter; allowed: {allowed}.", next(iter(left)))
    return chosen, bounds


async def _found(database: AsyncEngine, listing: Listing, chosen: dict[str, Any], bounds: dict[str, Any]) -> Page:
    async def read() -> Page:
        return await listing.page(database, await _by_id(database, chosen), **bounds)

    try:
        return await reached(read())
    except PageError as error:
        raise bad_request(f"{error}.", error.param, "invalid_value") from error


def form_time(name: str, text: str) -> float:
    """Return the epoch seconds of a form's time field (UTC); a number is taken as it is. Raises `ApiError` 400."""
    if not is_number(text):
        try:
            text = str(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())
        except (ValueError, OverflowError):
            raise bad_request(f"Invalid {name}: {text[:64]!r} is not a time.", name, "invalid_value") from None
    return epoch_seconds(text, name)


def target_of(text: str) -> float | None:
    """Parse a quality target of a form or query, by number or name; "" is none. Raises `ApiError` 400."""
    if not (text := text.strip()):
        return None
    if text in QUALITY_SETTINGS:
        return QUALITY_SETTINGS[text]
    return number(text, "quality_target", 0, 1, f", or one of {', '.join(QUALITY_SETTINGS)}")


async def _by_id(database: AsyncEngine, chosen: dict[str, Any]) -> dict[str, Any]:
    """Return the filters with the ids of keys and teams, which may be given by name."""
    named = chosen.keys() & _KINDS.keys()
    if not named:
        return chosen
    async with database.connect() as connection:
        ids = {column: await id_of(connection, _KINDS[column], chosen[column]) for column in named}
    return chosen | {column: id_ for column, id_ in ids.items() if id_ is not None}


async def _as_csv(database: AsyncEngine, listing: Listing, query: dict[str, str]) -> Response[Any]:
    chosen, bounds = asked_for(listing, query)
    left: int = bounds.pop("limit", USUAL_CSV_ROWS)
    if not 1 <= left <= MOST_CSV_ROWS:
        allowed = f"it must lie between 1 and {MOST_CSV_ROWS}"
        raise bad_request(f"limit is {left}; {allowed}.", "limit", "invalid_value")
    # Errors are reported before the file starts; if the database fails later, the file is cut off.
    first = await _found(database, listing, chosen, bounds | {"limit": min(left, MOST)})

    async def chunks() -> AsyncIterator[str]:
        page, rows = first, left
        yield head_of(listing.columns)
        while True:
            yield lines_of(listing.columns, page.rows)
            rows -= len(page.rows)
            if page.next is None or rows <= 0:
                return
            page = await _found(database, listing, chosen, bounds | {"cursor": page.next, "limit": min(rows, MOST)})

    return csv_stream(listing.table.name, chunks())


def _value(name: str, text: str, kind: type[Any]) -> Any:
    if kind is int:
        return whole_number(text, name, -MOST_INTEGER, MOST_INTEGER)
    if kind is float:
        return epoch_seconds(text, name)
    # PostgreSQL can compare with no text that has it.
    if "\0" in text:
        raise bad_request(f"Invalid {name}: {text[:64]!r} contains NUL.", name, "invalid_value")
    return text


async def names_of(engine: AsyncEngine, ids: Iterable[str | None]) -> dict[str, str]:
    """Return the names of the keys and teams with these ids; keys of the settings have no other id than their name.
    Raises `ApiError` 503."""
    wanted = {id_ for id_ in ids if id_ is not None}

    async def read() -> dict[str, str]:
        of_keys = select(api_keys.c.key_id, api_keys.c.name).where(api_keys.c.key_id.in_(wanted))
        of_teams = select(teams.c.team_id, teams.c.name).where(teams.c.team_id.in_(wanted))
        async with engine.connect() as connection:
            return {row.key_id: row.name for row in await connection.execute(of_keys.union_all(of_teams))}

    return await reached(read()) if wanted else {}
