"""The steps of agents' sessions, as numbers: tiers, caches, moves with their reasons, and how the work ended."""

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Of earlier requests nothing is known."""
    op.create_table(
        "session_steps",
        sa.Column("request_id", sa.String(64), nullable=False),
        sa.Column("session", sa.String(32), nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("key_id", sa.String(128)),
        sa.Column("client", sa.String(32), nullable=False),
        sa.Column("purpose", sa.String(16), nullable=False),
        sa.Column("step", sa.Integer, nullable=False),
        sa.Column("loop_step", sa.Integer, nullable=False),
        sa.Column("at", sa.String(16), nullable=False),
        sa.Column("tier", sa.Integer, nullable=False),
        sa.Column("previous", sa.Integer),
        sa.Column("rule", sa.String(8), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("gap_seconds", sa.Double),
        sa.Column("errors", sa.Integer, nullable=False),
        sa.Column("repeats", sa.Integer, nullable=False),
        sa.Column("bad_calls", sa.Integer, nullable=False),
        sa.Column("last_exit", sa.String(8)),
        sa.Column("prompt_tokens", sa.Integer, nullable=False),
        sa.Column("cached_tokens", sa.Integer, nullable=False),
        sa.Column("written_tokens", sa.Integer, nullable=False),
        sa.Column("completion_tokens", sa.Integer, nullable=False),
        sa.Column("cost_usd", sa.Double, nullable=False),
        sa.Column("strongest_usd", sa.Double, nullable=False),
        sa.Column("ended", sa.String(8)),
        sa.Column("end_sign", sa.String(16)),
        sa.Column("end_weight", sa.Double),
        sa.Column("trouble", sa.JSON(none_as_null=True)),
        sa.ForeignKeyConstraint(
            ["request_id"], ["requests.request_id"], name="fk_session_steps_request_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("request_id", name="pk_session_steps"),
    )
    op.create_index("ix_session_steps_session_created_at", "session_steps", ["session", "created_at"])
    op.create_index("ix_session_steps_created_at", "session_steps", ["created_at"])


def downgrade() -> None:
    """Forget them."""
    op.drop_table("session_steps")
