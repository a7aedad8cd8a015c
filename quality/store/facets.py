"""List rows by any combination of columns with few distinct values; one index serves all combinations, newest first."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Table, text
from sqlalchemy.ext.asyncio import AsyncConnection

SEPARATOR = "/"
# SQLite allows at most 500 statements in one compound.
MOST_AT_ONCE = 200
LOOKED_THROUGH = 2000


class Facets:
    """The combinations of `columns` that a table's rows have, encoded in the column `facet`: their values joined by
    slashes, empty for NULL. Indexes start with `facet`, and with `owner` and `facet`, followed by `created_at` and the
    key.

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
        wanted = [(place, str(chosen[name])) for place, name in enumerate(self.columns) if name in chosen]
        return [facet for facet in facets if _has(facet.split(SEPARATOR, len(self.columns) - 1), wanted)]

    async def among_newest(
        self, connection: AsyncConnection, chosen: Mapping[str, Any], bounds: Mapping[str, Any]
    ) -> list[Any]:
        """Return the keys of at most `limit` matching rows among the newest `LOOKED_THROUGH` rows; `bounds` as
        below."""
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
        self,
        connection: AsyncConnection,
        facets: Sequence[str],
        chosen: Mapping[str, Any],
        bounds: Mapping[str, Any],
    ) -> list[Any]:
        """Return the keys of the newest `limit` rows of these combinations.

        `bounds`: `limit`, and `since`, `until`, or `at` and `last`, the position after which rows are wanted.
        """
        if connection.dialect.name == "postgresql":
            given = {"facets": list(facets), **bounds, **self._owner(chosen)}
            return [key for _, key in (await connection.execute(self._lateral(chosen, bounds), given)).all()]
        found: list[Any] = []
        for begin in range(0, len(facets), MOST_AT_ONCE):
            some = facets[begin : begin + MOST_AT_ONCE]
            found += (await connection.execute(self.statement(some, chosen, bounds))).all()
        found.sort(reverse=True)
        return [key for _, key in found[: bounds["limit"]]]

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
            f"WHERE facet = :facet_{place}{among} {order}) AS part_{place}"
            for place in range(len(facets))
        ]
        statement = text(f"SELECT {columns} FROM ({' UNION ALL '.join(parts)}) AS newest {order}")  # noqa: S608
        values = {f"facet_{place}": facet for place, facet in enumerate(facets)} | self._owner(chosen)
        return statement.bindparams(**bounds, **values)

    def _owner(self, chosen: Mapping[str, Any]) -> dict[str, Any]:
        return {"owner": chosen[self.owner]} if self.owner in chosen else {}

    def _conditions(self, chosen: Mapping[str, Any], bounds: Mapping[str, Any]) -> list[str]:
        # The first part of the last condition only serves the index.
        behind = f"created_at <= :at AND (created_at < :at OR {self._key} < :last)"
        known = {"since": "created_at >= :since", "until": "created_at < :until", "at": behind}
        owned = [f"{self.owner} = :owner"] if self.owner in chosen else []
        return owned + [sql for name, sql in known.items() if name in bounds]


def _has(values: Sequence[str], wanted: Sequence[tuple[int, str]]) -> bool:
    return all(place < len(values) and values[place] == value for place, value in wanted)
