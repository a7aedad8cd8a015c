"""Pages of stored rows, newest first, found by an index and continued by a cursor."""

import math
from collections.abc import Mapping
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Integer, Table, and_, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from quality.store.database import MOST_INTEGER
from quality.store.facets import Facets

MOST = 1000


class PageError(ValueError):
    """The cursor comes from no page, or the limit is out of range; `param` names the parameter."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """`next` is the cursor of the following page, None after the last."""

    rows: list[dict[str, Any]]
    next: str | None


class Listing:
    """How rows of a table are listed: by `created_at` and then `key`, without the columns in `hidden`.

    `filters` are columns to filter by value. Each combination of them needs an index that continues with `created_at`,
    so that a page costs the same for any number of rows; tests in `tests/quality` check each of them. If there are too
    many combinations for that, `facets` finds the rows.
    """

    def __init__(
        self,
        table: Table,
        key: str,
        filters: tuple[str, ...],
        hidden: tuple[str, ...] = (),
        facets: Facets | None = None,
    ) -> None:
        self.table = table
        self.filters = filters
        self.facets = facets
        self._key = key
        self._whole = [column for column in table.c if column.computed is None]
        self._shown = [column for column in self._whole if column.name not in hidden]

    @property
    def columns(self) -> list[str]:
        """The names of the columns that a page shows."""
        return [column.name for column in self._shown]

    def kind(self, column: str) -> type[int] | type[str]:
        """Return the type of a column's values: numbers, or some sort of text."""
        return int if isinstance(self.table.c[column].type, Integer) else str

    def query(
        self,
        chosen: Mapping[str, Any],
        *,
        since: float | None = None,
        until: float | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Any:
        """Return the query for a page and the first row after it; `chosen` by column, times in epoch seconds, `since`
        inclusive, `until` exclusive. Raises `PageError`."""
        if not 1 <= limit <= MOST:
            raise PageError(f"limit is {limit}; it must lie between 1 and {MOST}", "limit")
        created, key = self.table.c.created_at, self.table.c[self._key]
        conditions: list[ColumnElement[bool]] = [self.table.c[name] == value for name, value in chosen.items()]
        if since is not None:
            conditions.append(created >= since)
        if until is not None:
            conditions.append(created < until)
        if cursor is not None:
            at, last = self._position(cursor)
            # The first part only serves the index; together they select the rows after that position.
            conditions.append(and_(created <= at, or_(created < at, key < last)))
        return select(*self._shown).where(*conditions).order_by(created.desc(), key.desc()).limit(limit + 1)

    async def page(self, engine: AsyncEngine, chosen: Mapping[str, Any], *, limit: int = 100, **bounds: Any) -> Page:
        """Return the rows that `query` finds. Raises `PageError`."""
        query = self.query(chosen, limit=limit, **bounds)
        async with engine.connect() as connection:
            if self.facets is not None and not self.facets.columns.isdisjoint(chosen):
                query = await self._by_facets(connection, self.facets, chosen, limit, **bounds)
            found = [dict(row) for row in (await connection.execute(query)).mappings()]
        rows = found[:limit]
        more = len(found) > limit
        return Page(rows=rows, next=self.cursor_of(rows[-1]) if more else None)

    def cursor_of(self, row: Mapping[str, Any]) -> str:
        """Return the cursor of the page that starts after this row."""
        return f"{row['created_at']!r}:{row[self._key]}"

    async def _by_facets(
        self,
        connection: AsyncConnection,
        facets: Facets,
        chosen: Mapping[str, Any],
        limit: int,
        since: float | None = None,
        until: float | None = None,
        cursor: str | None = None,
    ) -> Any:
        given: dict[str, Any] = {"limit": limit + 1, "since": since, "until": until}
        if cursor is not None:
            given["at"], given["last"] = self._position(cursor)
        bounds = {name: value for name, value in given.items() if value is not None}
        # Common values are found among the newest rows; rare values have few combinations.
        keys = await facets.among_newest(connection, chosen, bounds)
        if len(keys) <= limit:
            keys = await facets.newest(connection, await facets.matching(connection, chosen), chosen, bounds)
        key = self.table.c[self._key]
        return select(*self._shown).where(key.in_(keys)).order_by(self.table.c.created_at.desc(), key.desc())

    async def one(self, engine: AsyncEngine, key: Any) -> dict[str, Any] | None:
        """Return the whole row, hidden columns included."""
        query = select(*self._whole).where(self.table.c[self._key] == key)
        async with engine.connect() as connection:
            row = (await connection.execute(query)).mappings().first()
        return None if row is None else dict(row)

    def _position(self, cursor: str) -> tuple[float, Any]:
        at, _, key = cursor.partition(":")
        try:
            place = float(at), self.kind(self._key)(key)
            if (
                (isinstance(place[1], int) and abs(place[1]) > MOST_INTEGER)
                or "\0" in key
                or not math.isfinite(place[0])
            ):
                raise ValueError
            return place
        except ValueError:
            raise PageError(f"cursor {cursor[:64]!r} was not given by a page", "cursor") from None
