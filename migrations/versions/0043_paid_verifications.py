"""What a tenant's requests cost and saved, and its verifications ever cost, is read from indexes alone; the part of a
request's cost that no server has counted is a column.
"""

from alembic import op
from sqlalchemy import Column, Double, text

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None

_REQUESTS, _VERIFICATIONS = "ix_requests_key_id_created_at", "ix_verifications_paid"
_OF_KEYS = ["key_id", "created_at"]
_PAID = text("cost_usd > 0")


def upgrade() -> None:
    """Index the costs of requests by key, and the verifications that cost anything; add the part of costs that is an
    estimate, NULL for nothing."""
    op.add_column("requests", Column("estimated_usd", Double))
    op.drop_index(_REQUESTS, "requests")
    op.create_index(_REQUESTS, "requests", [*_OF_KEYS, "tier", "cost_usd", "baseline_cost_usd"])
    paid = ["key_id", "finished_at", "cost_usd"]
    op.create_index(_VERIFICATIONS, "verifications", paid, sqlite_where=_PAID, postgresql_where=_PAID)


def downgrade() -> None:
    """Drop the estimates, and index requests by key and time alone."""
    op.drop_index(_VERIFICATIONS, "verifications")
    op.drop_index(_REQUESTS, "requests")
    op.create_index(_REQUESTS, "requests", _OF_KEYS)
    op.drop_column("requests", "estimated_usd")
