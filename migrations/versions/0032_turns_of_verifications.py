"""Waiting verifications hold the turn that they are about: messages with calls and attachments, and tools by digest;
labels say which judge made them."""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Verifications that wait already are of texts alone."""
    op.create_table(
        "tool_definitions",
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("key_id", sa.String(128)),
        sa.Column("tools", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("used_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_tool_definitions"),
    )
    op.create_index("ix_tool_definitions_used_at", "tool_definitions", ["used_at"])
    op.create_index("ix_tool_definitions_key_id_used_at", "tool_definitions", ["key_id", "used_at"])
    op.add_column("verifications", sa.Column("turn", sa.JSON(none_as_null=True)))
    op.add_column("verifications", sa.Column("tools_digest", sa.String(64)))
    op.add_column("verifications", sa.Column("next_step", sa.String(16)))
    op.add_column("training_rows", sa.Column("judge", sa.String(64)))


def downgrade() -> None:
    """Forget them."""
    op.drop_column("training_rows", "judge")
    op.drop_column("verifications", "next_step")
    op.drop_column("verifications", "tools_digest")
    op.drop_column("verifications", "turn")
    op.drop_table("tool_definitions")
