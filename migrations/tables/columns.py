"""What all tables share: their `metadata`, and the types of columns that databases do not agree about."""

from sqlalchemy import JSON, BigInteger, Integer, MetaData, Text, TypeDecorator
from sqlalchemy.engine import Dialect


class FreeText(TypeDecorator[str]):
    """Text written by people or models; U+0000, which PostgreSQL refuses, is stored as U+FFFD on every database."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return value if value is None else value.replace("\x00", "\ufffd")


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
