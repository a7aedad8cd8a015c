"""Rows by any combination of columns with few different values: one index finds them all, newest first."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Table, text
from sqlalchemy.ext.asyncio import AsyncConnection

SEPARATOR = "/"
# SQLite puts at most 500 statements together.
MOST_AT_ONCE = 200


class Facets:
    """The combinations of `columns` that a table's rows have, told apart by `expression`: their values with slashes
    between them, nothing for NULL. Indexes begin with `expression`, and with `owner` and `expression`, and go on with
    `created_at` and the key.

    A page of rows by some of the columns merges the newest rows of every combination that fits: as many short looks
    into the index as there are combinations, however rare the rows are and however many others there are.
    """

    def __init__(self, table: Table, key: str, expression: ColumnElement[str], columns: Sequence[str], owner: str):
        self.columns = dict.fromkeys(columns).keys()
        self.owner = owner
        self._table, self._key, self._expression = table.name, key, str(expression)

    async def matching(self, connection: AsyncConnection, chosen: Mapping[str, Any]) -> list[str]:
        """The combinations in the table that have the values in `chosen`, by column; by a skip scan of the index."""
        mine = f"{self.owner} = :owner AND" if self.owner in chosen else ""
        # The table and the expression are the schema's own.
        first = f"SELECT {self._expression} FROM {self._table} WHERE {mine} {{}} ORDER BY 1 LIMIT 1"  # noqa: S608
        lowest, next_one = first.format("TRUE"), first.format(f"{self._expression} > found.facet")
        statement = text(
            f"WITH RECURSIVE found(facet) AS (SELECT ({lowest}) UNION ALL "  # noqa: S608
            f"SELECT ({next_one}) FROM found WHERE found.facet IS NOT NULL) "
            "SELECT facet FROM found WHERE facet IS NOT NULL"
        )
        given = {"owner": chosen[self.owner]} if self.owner in chosen else {}
        facets = (await connection.execute(statement, given)).scalars()
        wanted = [(place, str(chosen[name])) for place, name in enumerate(self.columns) if name in chosen]
        return [facet for facet in facets if _has(facet.split(SEPARATOR, len(self.columns) - 1), wanted)]

    async def newest(
        self,
        connection: AsyncConnection,
        facets: Sequence[str],
        chosen: Mapping[str, Any],
        bounds: Mapping[str, Any],
    ) -> list[Any]:
        """The keys of the newest `limit` rows of these combinations.

        `bounds`: `limit`, and `since`, `until`, or `at` and `last`, the position behind which rows are wanted.
        """
        found: list[Any] = []
        for begin in range(0, len(facets), MOST_AT_ONCE):
            some = facets[begin : begin + MOST_AT_ONCE]
            found += (await connection.execute(self.statement(some, chosen, bounds))).all()
        found.sort(reverse=True)
        return [key for _, key in found[: bounds["limit"]]]

    def statement(self, facets: Sequence[str], chosen: Mapping[str, Any], bounds: Mapping[str, Any]) -> Any:
        """What finds times and keys of the newest rows of some combinations, newest first; `bounds` as for `newest`."""
        conditions = [f"{self.owner} = :owner"] if self.owner in chosen else []
        conditions += [sql for name, sql in self._bounds().items() if name in bounds]
        among = "".join(f" AND {condition}" for condition in conditions)
        columns, order = f"created_at, {self._key}", f"ORDER BY created_at DESC, {self._key} DESC LIMIT :limit"
        parts = [
            f"SELECT * FROM (SELECT {columns} FROM {self._table} "  # noqa: S608
            f"WHERE {self._expression} = :facet_{place}{among} {order}) AS part_{place}"
            for place in range(len(facets))
        ]
        owner = {"owner": chosen[self.owner]} if self.owner in chosen else {}
        statement = text(f"SELECT {columns} FROM ({' UNION ALL '.join(parts)}) AS newest {order}")  # noqa: S608
        return statement.bindparams(
            **owner, **bounds, **{f"facet_{place}": facet for place, facet in enumerate(facets)}
        )

    def _bounds(self) -> dict[str, str]:
        # The first part of the last one alone is for the index.
        behind = f"created_at <= :at AND (created_at < :at OR {self._key} < :last)"
        return {"since": "created_at >= :since", "until": "created_at < :until", "at": behind}


def _has(values: Sequence[str], wanted: Sequence[tuple[int, str]]) -> bool:
    return all(place < len(values) and values[place] == value for place, value in wanted)
