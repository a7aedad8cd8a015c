"""Users of the dashboard, and the browsers that are signed in."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Both tables start empty: keys of administrators sign in without them."""
    op.create_table(
        "dashboard_users",
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("password", sa.String(length=256), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_dashboard_users"),
    )
    op.create_index("ix_dashboard_users_created_at", "dashboard_users", ["created_at"])
    op.create_table(
        "dashboard_sessions",
        sa.Column("session_id", sa.String(length=64), nullable=False),
        sa.Column("user_name", sa.String(length=128)),
        sa.Column("key_prefix", sa.String(length=32)),
        sa.Column("key_digest", sa.String(length=64)),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("session_id", name="pk_dashboard_sessions"),
        sa.ForeignKeyConstraint(
            ["user_name"], ["dashboard_users.name"], name="fk_dashboard_sessions_user_name", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_dashboard_sessions_user_name", "dashboard_sessions", ["user_name"])
    op.create_index("ix_dashboard_sessions_expires_at", "dashboard_sessions", ["expires_at"])


def downgrade() -> None:
    """Nobody is signed in any more, and only keys can."""
    op.drop_table("dashboard_sessions")
    op.drop_table("dashboard_users")
