"""The schema: `tables.py` and the alembic revisions that build it."""
