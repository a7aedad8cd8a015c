"""The secrets of a key before its last two, as long as they are valid, are a column."""

from alembic import op
from sqlalchemy import Column

from migrations.tables.columns import Json

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the older secrets of keys that are still valid, NULL for none."""
    op.add_column("api_keys", Column("older_secrets", Json))


def downgrade() -> None:
    """Drop the older secrets, which end with it."""
    op.drop_column("api_keys", "older_secrets")
