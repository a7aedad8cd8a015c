"""Rollouts of classifier versions; which experiment and arm a decision belongs to; one experiment at a time."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_RUNNING = sa.text("status = 'running'")


def upgrade() -> None:
    """Add them; decisions made before belong to no experiment."""
    op.create_table(
        "rollouts",
        sa.Column("rollout_id", sa.String(64), nullable=False),
        sa.Column("version", sa.String(64), nullable=False),
        sa.Column("incumbent", sa.String(64), nullable=False),
        sa.Column("stage", sa.String(16), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("share", sa.Double(), nullable=False),
        sa.Column("settings", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("evidence", sa.JSON(none_as_null=True)),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("promoted_at", sa.Double()),
        sa.Column("finished_at", sa.Double()),
        sa.PrimaryKeyConstraint("rollout_id", name="pk_rollouts"),
    )
    op.create_index("ix_rollouts_created_at", "rollouts", ["created_at"])
    op.create_index("ix_rollouts_status_created_at", "rollouts", ["status", "created_at"])
    for table in ("rollouts", "experiments"):
        op.create_index(
            f"uq_{table}_running", table, ["status"], unique=True, sqlite_where=_RUNNING, postgresql_where=_RUNNING
        )
    op.add_column("routing_decisions", sa.Column("experiment_id", sa.String(64)))
    op.add_column("routing_decisions", sa.Column("arm", sa.String(8)))
    op.create_index(
        "ix_routing_decisions_experiment_id_created_at", "routing_decisions", ["experiment_id", "created_at"]
    )


def downgrade() -> None:
    """Drop them; which decisions were part of an experiment is forgotten."""
    op.drop_index("ix_routing_decisions_experiment_id_created_at", "routing_decisions")
    for column in ("arm", "experiment_id"):
        op.drop_column("routing_decisions", column)
    op.drop_index("uq_experiments_running", "experiments")
    op.drop_table("rollouts")
