"""What all tables share: their `metadata`, and the types of columns that databases do not agree about."""

from typing import Any

import msgspec
from sqlalchemy import JSON, BigInteger, Computed, Integer, LargeBinary, MetaData, Text, TypeDecorator
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles

from migrations.tables.packed import pack, unpack


def _without_nul(text: str | None) -> str | None:
    return text if text is None else text.replace("\x00", "\ufffd")


def _packed(value: Any) -> bytes | None:
    return None if value is None else pack(msgspec.json.encode(value))


class FreeText(TypeDecorator[str]):
    """Text written by people or models; U+0000, which PostgreSQL refuses, is stored as U+FFFD on every database."""

    impl = Text
    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> Any:
        """See SQLAlchemy, whose own calls three functions for each value."""
        return _without_nul


class PackedText(TypeDecorator[Any]):
    """A value stored as compressed JSON, which is read as the bytes of that JSON, for a decoder of what is needed."""

    impl = LargeBinary
    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> Any:
        """See `FreeText.bind_processor`."""
        return _packed

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return None if value is None else unpack(value)


class PackedJson(PackedText):
    """A value stored as compressed JSON and read as a value again."""

    cache_ok = True

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return None if value is None else msgspec.json.decode(unpack(value))


class IndexedComputed(Computed):
    """A computed column that an index may hold: stored on PostgreSQL, computed by each read on SQLite."""


@compiles(IndexedComputed, "postgresql")
def _stored(computed: IndexedComputed, compiler: Any, **_: Any) -> str:
    return f"GENERATED ALWAYS AS ({compiler.sql_compiler.process(computed.sqltext, literal_binds=True)}) STORED"


metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# SQLite assigns row numbers only to a key of type INTEGER.
RowId = BigInteger().with_variant(Integer(), "sqlite")

# Python None is SQL NULL, never the JSON word null. PostgreSQL's json (not jsonb) keeps \u0000 of user texts.
Json = JSON(none_as_null=True)
