"""Alerts that were sent are known to all replicas, and after a restart."""

import sqlalchemy as sa
from alembic import op

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """One table."""
    op.create_table(
        "alert_messages",
        sa.Column("channel", sa.String(16), nullable=False),
        sa.Column("cause", sa.String(256), nullable=False),
        sa.Column("state", sa.String(8), nullable=False),
        sa.Column("severity", sa.String(16), nullable=False),
        sa.Column("summary", sa.Text, nullable=False),
        sa.Column("ends", sa.Boolean, nullable=False),
        sa.Column("sent_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("channel", "cause", name="pk_alert_messages"),
    )
    op.create_index("ix_alert_messages_sent_at", "alert_messages", ["sent_at"])


def downgrade() -> None:
    """Forget them."""
    op.drop_table("alert_messages")
