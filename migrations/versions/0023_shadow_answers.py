"""What a verification had the judged tier answer, and its cost; and an index of the requests of observe mode."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

OBSERVED = sa.text("would_be_tier IS NOT NULL")


def upgrade() -> None:
    """Of earlier verifications neither is known."""
    op.add_column("verifications", sa.Column("judged_answer", sa.Text()))
    op.add_column("verifications", sa.Column("judged_cost_usd", sa.Double()))
    op.create_index(
        "ix_routing_decisions_observed",
        "routing_decisions",
        ["created_at"],
        sqlite_where=OBSERVED,
        postgresql_where=OBSERVED,
    )


def downgrade() -> None:
    """Forget them."""
    op.drop_index("ix_routing_decisions_observed", "routing_decisions")
    op.drop_column("verifications", "judged_cost_usd")
    op.drop_column("verifications", "judged_answer")
