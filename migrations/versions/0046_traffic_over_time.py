"""The traffic over time is read from one index alone: it holds statuses and times to the first token, too."""

from alembic import op

revision = "0046"
down_revision = "0045"
branch_labels = None
depends_on = None

_BEFORE, _NOW = "ix_requests_created_at_tier_cost_usd", "ix_requests_traffic"
_COSTS = ["created_at", "tier", "cost_usd", "baseline_cost_usd"]


def upgrade() -> None:
    """Widen the index of recent spending."""
    op.create_index(_NOW, "requests", [*_COSTS, "status", "ttft_ms"])
    op.drop_index(_BEFORE, "requests")


def downgrade() -> None:
    """Narrow it again."""
    op.create_index(_BEFORE, "requests", _COSTS)
    op.drop_index(_NOW, "requests")
