"""Sums over the trailing day, and a tier's newest verdicts, are read from indexes alone."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

_TEXTS = sa.text("messages IS NOT NULL")
_LABELLED = sa.text("label IS NOT NULL")


def upgrade() -> None:
    """Three indexes get more columns, and one is new."""
    op.drop_index("ix_requests_created_at", "requests")
    op.create_index("ix_requests_created_at_tier_cost_usd", "requests", ["created_at", "tier", "cost_usd"])
    _texts("created_at", "tier", "api", "status")
    op.drop_index("ix_verifications_finished_at", "verifications")
    op.create_index(
        "ix_verifications_spending",
        "verifications",
        ["finished_at", "verification_id", "sampled_reason", "status", "request_id", "cost_usd", "reserved_usd"],
    )
    op.create_index(
        "ix_verifications_verdicts",
        "verifications",
        ["tier", "finished_at", "verification_id"],
        sqlite_where=_LABELLED,
        postgresql_where=_LABELLED,
    )


def downgrade() -> None:
    """The narrower ones again."""
    op.drop_index("ix_verifications_verdicts", "verifications")
    op.drop_index("ix_verifications_spending", "verifications")
    op.create_index("ix_verifications_finished_at", "verifications", ["finished_at"])
    _texts("created_at")
    op.drop_index("ix_requests_created_at_tier_cost_usd", "requests")
    op.create_index("ix_requests_created_at", "requests", ["created_at"])


def _texts(*columns: str) -> None:
    op.drop_index("ix_requests_texts", "requests")
    op.create_index("ix_requests_texts", "requests", columns, sqlite_where=_TEXTS, postgresql_where=_TEXTS)
