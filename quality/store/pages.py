"""Pages of stored rows, newest first, found by an index and continued by a cursor; and the lists of requests and of the
quality loop with their filters.

One index serves all combinations of the columns with few distinct values (`Facets`)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Integer, Table, and_, or_, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from migrations.tables.api_objects import batches
from migrations.tables.audit import audit_events
from migrations.tables.quality import (
    VERIFICATION_FACETS,
    classifier_versions,
    experiments,
    retrain_runs,
    rollouts,
    verifications,
)
from migrations.tables.requests import REQUEST_FACETS, refused_requests, requests
from quality.store.database import MOST_INTEGER

SEPARATOR = "/"
# SQLite allows at most 500 statements in one compound.
MOST_AT_ONCE = 200
LOOKED_THROUGH = 2000


class Facets:
    """The combinations of `columns` that a table's rows have, encoded in the column `facet`: values joined by slashes,
    NULL empty. Indexes start with `facet`, and with `owner` and `facet`, followed by `created_at` and the key.

    A page of rows by some of the columns is found among the newest rows of all, or else by merging the newest rows of
    every matching combination: one short index look-up per combination, independent of how rare the rows are.
    """

    def __init__(self, table: Table, key: str, columns: Sequence[str], owner: str) -> None:
        self.columns = dict.fromkeys(columns).keys()
        self.owner = owner
        self._table, self._key = table.name, key

    async def matching(self, connection: AsyncConnection, chosen: Mapping[str, Any]) -> list[str]:
        """Return the table's combinations with the values in `chosen`, by column; uses a skip scan of the index."""
        mine = f"{self.owner} = :owner AND" if self.owner in chosen else ""
        # Table and column names come from the schema.
        first = f"SELECT t.facet FROM {self._table} AS t WHERE {mine} {{}} ORDER BY t.facet LIMIT 1"  # noqa: S608
        lowest, next_one = first.format("TRUE"), first.format("t.facet > found.facet")
        statement = text(
            f"WITH RECURSIVE found(facet) AS (SELECT ({lowest}) UNION ALL "  # noqa: S608
            f"SELECT ({next_one}) FROM found WHERE found.facet IS NOT NULL) "
            "SELECT facet FROM found WHERE facet IS NOT NULL"
        )
        facets = (await connection.execute(statement, self._owner(chosen))).scalars()
        wanted = [(position, str(chosen[name])) for position, name in enumerate(self.columns) if name in chosen]
        return [facet for facet in facets if _has(facet.split(SEPARATOR, len(self.columns) - 1), wanted)]

    async def among_newest(
        self, connection: AsyncConnection, chosen: Mapping[str, Any], bounds: Mapping[str, Any]
    ) -> list[Any]:
        """Return the keys of at most `limit` matching rows of the newest `LOOKED_THROUGH`; `bounds` as below."""
        order = f"ORDER BY created_at DESC, {self._key} DESC"
        conditions = self._conditions(chosen, bounds)
        among = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        wanted = [name for name in self.columns if name in chosen]
        statement = text(
            f"SELECT {self._key} FROM (SELECT created_at, {self._key}, {', '.join(wanted)} FROM {self._table} "  # noqa: S608
            f"{among} {order} LIMIT {LOOKED_THROUGH}) AS latest "
            f"WHERE {' AND '.join(f'{name} = :{name}' for name in wanted)} {order} LIMIT :limit"
        )
        values = {name: chosen[name] for name in wanted} | self._owner(chosen)
        return list((await connection.execute(statement, {**bounds, **values})).scalars())

    async def newest(
        self, connection: AsyncConnection, facets: Sequence[str], chosen: Mapping[str, Any], bounds: Mapping[str, Any]
    ) -> list[Any]:
        """Return the keys of the newest `limit` rows of these combinations.

        `bounds`: `limit`, and `since`, `until`, or `at` and `last`, the position after which rows are wanted.
        """
        if connection.dialect.name == "postgresql":
            parameters = {"facets": list(facets), **bounds, **self._owner(chosen)}
            return [key for _, key in (await connection.execute(self._lateral(chosen, bounds), parameters)).all()]
        rows: list[Any] = []
        for begin in range(0, len(facets), MOST_AT_ONCE):
            some = facets[begin : begin + MOST_AT_ONCE]
            rows += (await connection.execute(self.statement(some, chosen, bounds))).all()
        rows.sort(reverse=True)
        return [key for _, key in rows[: bounds["limit"]]]

    def _lateral(self, chosen: Mapping[str, Any], bounds: Mapping[str, Any]) -> Any:
        """Return `statement` for any number of combinations, planned as one."""
        among = "".join(f" AND {condition}" for condition in self._conditions(chosen, bounds))
        columns, order = f"created_at, {self._key}", f"ORDER BY created_at DESC, {self._key} DESC LIMIT :limit"
        return text(
            f"SELECT {columns} FROM unnest(CAST(:facets AS text[])) AS wanted(facet) CROSS JOIN LATERAL "  # noqa: S608
            f"(SELECT {columns} FROM {self._table} AS t WHERE t.facet = wanted.facet{among} {order}) AS part {order}"
        )

    def statement(self, facets: Sequence[str], chosen: Mapping[str, Any], bounds: Mapping[str, Any]) -> Any:
        """Return a query for times and keys of the newest rows of some combinations, newest first; `bounds` as for
        `newest`.

        SQLite has no lateral join.
        """
        among = "".join(f" AND {condition}" for condition in self._conditions(chosen, bounds))
        columns, order = f"created_at, {self._key}", f"ORDER BY created_at DESC, {self._key} DESC LIMIT :limit"
        parts = [
            f"SELECT * FROM (SELECT {columns} FROM {self._table} "  # noqa: S608
            f"WHERE facet = :facet_{index}{among} {order}) AS part_{index}"
            for index in range(len(facets))
        ]
        statement = text(f"SELECT {columns} FROM ({' UNION ALL '.join(parts)}) AS newest {order}")  # noqa: S608
        values = {f"facet_{index}": facet for index, facet in enumerate(facets)} | self._owner(chosen)
        return statement.bindparams(**bounds, **values)

    def _owner(self, chosen: Mapping[str, Any]) -> dict[str, Any]:
        return {"owner": chosen[self.owner]} if self.owner in chosen else {}

    def _conditions(self, chosen: Mapping[str, Any], bounds: Mapping[str, Any]) -> list[str]:
        # The first part of the last condition only serves the index.
        behind = f"created_at <= :at AND (created_at < :at OR {self._key} < :last)"
        sql_by_bound = {"since": "created_at >= :since", "until": "created_at < :until", "at": behind}
        owned = [f"{self.owner} = :owner"] if self.owner in chosen else []
        return owned + [sql for name, sql in sql_by_bound.items() if name in bounds]


def _has(values: Sequence[str], wanted: Sequence[tuple[int, str]]) -> bool:
    return all(position < len(values) and values[position] == value for position, value in wanted)


MOST = 1000


class PageError(ValueError):
    """The cursor comes from no page, or the limit is out of range; `param` names the parameter."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a list."""

    rows: list[dict[str, Any]]
    next: str | None
    """The cursor of the following page, None after the last."""


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
            fetched = [dict(row) for row in (await connection.execute(query)).mappings()]
        rows = fetched[:limit]
        more = len(fetched) > limit
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
        all_bounds: dict[str, Any] = {"limit": limit + 1, "since": since, "until": until}
        if cursor is not None:
            all_bounds["at"], all_bounds["last"] = self._position(cursor)
        bounds = {name: value for name, value in all_bounds.items() if value is not None}
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
            position = float(at), self.kind(self._key)(key)
            if (
                (isinstance(position[1], int) and abs(position[1]) > MOST_INTEGER)
                or "\0" in key
                or not math.isfinite(position[0])
            ):
                raise ValueError
            return position
        except ValueError:
            raise PageError(f"cursor {cursor[:64]!r} was not given by a page", "cursor") from None


# Users' texts are shown for one requested row at a time, never in lists.
REQUESTS = Listing(
    requests,
    "request_id",
    (*REQUEST_FACETS, "key_id"),
    hidden=("messages", "answer", "reasoning", "response_format"),
    facets=Facets(requests, "request_id", REQUEST_FACETS, owner="key_id"),
)
REFUSED = Listing(refused_requests, "refusal_id", ("key_id", "code"))
VERIFICATIONS = Listing(
    verifications,
    "verification_id",
    ("tier", "status", "label", "judge", "sampled_reason", "key_id"),
    hidden=("verifier_answer", "judged_answer", "turn", "tools_digest", "owner", "lease_until"),
    facets=Facets(verifications, "verification_id", VERIFICATION_FACETS, owner="key_id"),
)
ARTEFACTS = Listing(classifier_versions, "version", ("status",))
TRANSITIONS = Listing(audit_events, "audit_event_id", ("action", "actor"))
RETRAININGS = Listing(retrain_runs, "run_id", ("status", "trigger"), hidden=("owner", "lease_until"))
ROLLOUTS = Listing(rollouts, "rollout_id", ("status",))
BATCHES = Listing(
    batches, "batch_id", ("status", "key_id"), hidden=("owner", "lease_until", "traceparent", "output_seconds")
)
EXPERIMENTS = Listing(experiments, "experiment_id", ("status",))
