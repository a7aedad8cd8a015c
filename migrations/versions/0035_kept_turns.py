"""Turns of assistants that only their server can read, kept for the next step."""

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """One table."""
    op.create_table(
        "kept_turns",
        sa.Column("turn_id", sa.String(64), nullable=False),
        sa.Column("key_id", sa.String(128)),
        sa.Column("tenant", sa.String(128), nullable=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sa.Column("size", sa.Integer, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("turn_id", name="pk_kept_turns"),
    )
    op.create_index("ix_kept_turns_created_at", "kept_turns", ["created_at"])
    op.create_index("ix_kept_turns_key_id_created_at", "kept_turns", ["key_id", "created_at"])
    op.create_index("ix_kept_turns_tenant_created_at", "kept_turns", ["tenant", "created_at"])


def downgrade() -> None:
    """Forget them."""
    op.drop_table("kept_turns")
