"""The oldest revision: its schema is that of `migrations.tables` when it was the newest one.

An empty database never passes it, because its tables are made at once (`migrations.tables.create_schema`). One at an
earlier revision is refused (`quality.store.database`); the commit that it names brings it here.
"""

revision = "0041"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nothing: there is no database between empty and this revision."""


def downgrade() -> None:
    """Nothing: no command goes back to before this revision."""
