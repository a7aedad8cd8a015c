"""The schema: every table of the store, so that quality and gateway read and write the same columns.

Conventions. Times are UTC epoch seconds (float). Money is US dollars (float). A structure that is only ever
read whole is a JSON column; everything a query filters, groups or sums is a column of its own.
`key_id` is the pseudonym of the API key a row belongs to, repeated wherever a user's data lives, so that
erasing a user is one DELETE per table. Rows point at requests by `request_id` without a foreign key,
because a request reaches the database behind its journal and may arrive after the row that names it.

Alembic revisions in `versions/` create the same schema step by step; a test checks that they agree. Whichever module is
imported, all are, so that `columns.metadata` holds every table.
"""

from migrations.tables import api_objects, audit, quality, requests, tenancy

__all__ = ["api_objects", "audit", "quality", "requests", "tenancy"]
