"""The schema: every table of the store, so that quality and gateway read and write the same columns.

Conventions. Times are UTC epoch seconds (float). Money is US dollars (float). A structure that is only ever
read whole is a JSON column; everything a query filters, groups or sums is a column of its own.
`key_id` is the pseudonym of the API key a row belongs to, repeated wherever a user's data lives, so that
erasing a user is one DELETE per table. Rows point at requests by `request_id` without a foreign key,
because a request reaches the database behind its journal and may arrive after the row that names it.

An empty database gets these tables at once. A change of them is also an alembic revision in `versions/`, which brings
a database with rows to the same schema; tests compare the two. Whichever module is imported, all are, so that
`columns.metadata` holds every table.
"""

from sqlalchemy import Connection, insert

from migrations.tables import api_objects, audit, quality, requests, tenancy
from migrations.tables.columns import metadata

__all__ = ["api_objects", "audit", "create_schema", "quality", "requests", "tenancy"]


def create_schema(connection: Connection) -> None:
    """Make all tables in an empty database, and the row that counts changes of tenancy; fail where a table exists."""
    metadata.create_all(connection, checkfirst=False)
    connection.execute(insert(tenancy.tenancy_state).values(state_id=1, revision=1))
