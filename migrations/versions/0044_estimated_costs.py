"""What of a request's cost no server has counted is summed apart in cost reports."""

from alembic import op
from sqlalchemy import Column, Double

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the estimated part of the cost; NULL, as of all requests so far, is nothing."""
    op.add_column("requests", Column("estimated_usd", Double))


def downgrade() -> None:
    """Drop it."""
    op.drop_column("requests", "estimated_usd")
