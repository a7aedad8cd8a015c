"""What a tenant's verifications ever cost is read from an index alone, before each of them."""

from alembic import op
from sqlalchemy import text

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None

_PAID = text("cost_usd > 0")


def upgrade() -> None:
    """Index the verifications that cost anything, by key."""
    op.create_index(
        "ix_verifications_paid",
        "verifications",
        ["key_id", "finished_at", "cost_usd"],
        sqlite_where=_PAID,
        postgresql_where=_PAID,
    )


def downgrade() -> None:
    """Drop the index."""
    op.drop_index("ix_verifications_paid", "verifications")
