"""Requests and stored responses know which tiers may see their texts; keys may ask for local tiers only."""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Texts that are stored of keys with tiers or models of their own are shown to no tier again: which ones were
    allowed when they were asked is not known."""
    json = sa.JSON(none_as_null=True)
    op.add_column("api_keys", sa.Column("local_only", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("requests", sa.Column("consent", json))
    op.add_column("stored_responses", sa.Column("consent", json))
    op.execute(
        """UPDATE requests SET consent = '{"tiers":[]}' WHERE messages IS NOT NULL AND key_id IN
        (SELECT key_id FROM api_keys WHERE tiers IS NOT NULL OR models IS NOT NULL)"""
    )


def downgrade() -> None:
    """Forget them."""
    op.drop_column("stored_responses", "consent")
    op.drop_column("requests", "consent")
    op.drop_column("api_keys", "local_only")
