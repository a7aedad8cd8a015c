"""Knob changes: which model they were for, whether they were kept across restarts, and those that were refused."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; changes made before concern no model in particular and were not kept."""
    op.add_column("knob_changes", sa.Column("model", sa.Text()))
    op.add_column("knob_changes", sa.Column("kept", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("knob_changes", sa.Column("refused", sa.Text()))


def downgrade() -> None:
    """Drop the columns, and with them the refused changes: without the column they would read as made."""
    op.execute("DELETE FROM knob_changes WHERE refused IS NOT NULL")
    for column in ("refused", "kept", "model"):
        op.drop_column("knob_changes", column)
