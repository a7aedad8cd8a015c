"""Responses that later requests refer to by `previous_response_id`."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """One table."""
    op.create_table(
        "stored_responses",
        sa.Column("response_id", sa.String(64), nullable=False),
        sa.Column("key_id", sa.String(128)),
        sa.Column("tenant", sa.String(128), nullable=False),
        sa.Column("previous_response_id", sa.String(64)),
        sa.Column("conversation", sa.String(128), nullable=False),
        sa.Column("context_bytes", sa.BigInteger, nullable=False),
        sa.Column("input", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("response", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("response_id", name="pk_stored_responses"),
    )
    op.create_index("ix_stored_responses_created_at", "stored_responses", ["created_at"])
    op.create_index("ix_stored_responses_key_id_created_at", "stored_responses", ["key_id", "created_at"])


def downgrade() -> None:
    """Forget them."""
    op.drop_table("stored_responses")
