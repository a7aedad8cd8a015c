"""Run alembic's revisions on the caller's open connection and transaction."""

from alembic import context

from migrations.tables.columns import metadata

# `quality.store.database` opens the connection and takes the lock; there is no alembic.ini and no offline mode.
context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # SQLite cannot alter most of a table in place: alembic copies it instead.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
