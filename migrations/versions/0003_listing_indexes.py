"""Indexes behind every filter of the lists of verifications, audit events and retraining runs."""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_INDEXES = (
    ("verifications", "label"),
    ("verifications", "judge"),
    ("verifications", "sampled_reason"),
    ("audit_events", "actor"),
    ("retrain_runs", "status"),
    ("retrain_runs", "trigger"),
)


def upgrade() -> None:
    """Add them; on a large table this takes a while."""
    for table, column in _INDEXES:
        op.create_index(f"ix_{table}_{column}_created_at", table, [column, "created_at"])


def downgrade() -> None:
    """Drop them."""
    for table, column in _INDEXES:
        op.drop_index(f"ix_{table}_{column}_created_at", table)
