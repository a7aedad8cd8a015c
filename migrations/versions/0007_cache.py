"""What the response cache had to do with a request."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Requests from before had no cache."""
    op.add_column("requests", sa.Column("cache", sa.String(length=16)))


def downgrade() -> None:
    """Forget it."""
    op.drop_column("requests", "cache")
