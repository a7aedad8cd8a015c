"""Insert many rows of one table: the statement and the conversion of each column are prepared once per database.

SQLAlchemy prepares the values of each row again, which costs more than the rest of storing it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import Dialect, Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection


class _Prepared(NamedTuple):
    """`columns`: in the order of the statement's parameters, with what converts a value; None keeps it as it is."""

    statement: str
    columns: Sequence[tuple[str, Callable[[Any], Any] | None]]


async def insert_if_absent(connection: AsyncConnection, table: Table, rows: Iterable[Mapping[str, Any]]) -> None:
    """Insert `rows`, at least one, each with a value for every column that is not computed; those whose key is there
    already stay unchanged."""
    statement, columns = _prepared(connection.dialect, table)
    await connection.exec_driver_sql(
        statement,
        [tuple([row[name] if convert is None else convert(row[name]) for name, convert in columns]) for row in rows],
    )


def insert_into(table: Table, dialect: Dialect) -> postgresql.Insert | sqlite.Insert:
    """Return an insert that can say what becomes of conflicts, in the database's own words."""
    return postgresql.insert(table) if dialect.name == "postgresql" else sqlite.insert(table)


@lru_cache(maxsize=16)
def _prepared(dialect: Dialect, table: Table) -> _Prepared:
    given = [column.name for column in table.c if column.computed is None]
    compiled = insert_into(table, dialect).on_conflict_do_nothing().compile(dialect=dialect, column_keys=given)
    kinds = [(name, table.c[name].type.dialect_impl(dialect)) for name in compiled.positiontup or ()]
    return _Prepared(str(compiled), [(name, kind.bind_processor(dialect)) for name, kind in kinds])
