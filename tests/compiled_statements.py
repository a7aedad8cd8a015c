"""SQL statements and inserts of rows, as an earlier engine of the same kind compiled them, kept for the next one.

Each test's gateway has an engine of its own, whose cache is empty, and sends the same statements: to compile them took
more processor time than to build the gateways.
"""

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Table
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.sql.elements import ClauseElement
from sqlalchemy.util import LRUCache

from quality.store import queries

CAPACITY = 3000


@contextmanager
def statements_compiled_once() -> Iterator[None]:
    """Let engines of one kind share their compiled statements while the block runs."""
    compile_statement = ClauseElement._compile_w_cache
    firsts: dict[Hashable, tuple[Dialect, LRUCache[Any, Any]]] = {}
    prepare = queries._prepared

    def shared(statement: ClauseElement, dialect: Dialect, *, compiled_cache: Any, **named: Any) -> Any:
        if compiled_cache is not None:  # it is None for a statement that the caller does not want to be kept
            dialect, compiled_cache = firsts.setdefault(_kind(dialect), (dialect, LRUCache(CAPACITY)))
        return compile_statement(statement, dialect, compiled_cache=compiled_cache, **named)

    def prepared(dialect: Dialect, table: Table) -> Any:
        dialect, _ = firsts.setdefault(_kind(dialect), (dialect, LRUCache(CAPACITY)))
        return prepare(dialect, table)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queries, "_prepared", prepared)
        patch.setattr(prepared, "cache_info", prepare.cache_info, raising=False)
        patch.setattr(ClauseElement, "_compile_w_cache", shared)
        yield


def _kind(dialect: Any) -> Hashable:
    """Equal for dialects that compile a statement alike and convert its values alike."""
    # A lambda is another function each time, of the same code.
    converters = (getattr(one, "__code__", one) for one in (dialect._json_serializer, dialect._json_deserializer))
    return type(dialect), dialect.paramstyle, dialect.server_version_info, *converters
