"""Requests are listed by key and tier together."""

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """One more index; the others are there."""
    op.create_index("ix_requests_key_id_tier_created_at", "requests", ["key_id", "tier", "created_at"])


def downgrade() -> None:
    """Drop it."""
    op.drop_index("ix_requests_key_id_tier_created_at", "requests")
