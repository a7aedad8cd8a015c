"""The alembic revisions, oldest first by number."""
