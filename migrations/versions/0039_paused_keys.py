"""Keys may be paused."""

import sqlalchemy as sa
from alembic import op

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """No key is paused so far."""
    op.add_column("api_keys", sa.Column("paused_at", sa.Double))


def downgrade() -> None:
    """A paused key is valid again."""
    op.drop_column("api_keys", "paused_at")
