"""Counts of refused requests, by minute."""

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """One table."""
    op.create_table(
        "refused_requests",
        sa.Column("refusal_id", sa.String(32), nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("key_id", sa.String(128)),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("code", sa.String(64), nullable=False),
        sa.Column("reason", sa.String(256), nullable=False),
        sa.Column("path", sa.String(128), nullable=False),
        sa.Column("count", sa.Integer, nullable=False),
        sa.Column("last_at", sa.Double, nullable=False),
        sa.Column("last_request_id", sa.String(128), nullable=False),
        sa.Column("last_message", sa.Text),
        sa.PrimaryKeyConstraint("refusal_id", name="pk_refused_requests"),
    )
    for columns in (["created_at"], ["key_id", "created_at"], ["code", "created_at"], ["key_id", "code", "created_at"]):
        op.create_index("_".join(["ix_refused_requests", *columns]), "refused_requests", columns)


def downgrade() -> None:
    """Forget them."""
    op.drop_table("refused_requests")
