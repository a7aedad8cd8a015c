"""Verifications in the order in which they were finished, and the version that was promoted last."""

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Without them each look at the budget and at the last verdicts reads every row there is."""
    op.create_index("ix_verifications_finished_at", "verifications", ["finished_at"])
    op.create_index("ix_classifier_versions_promoted_at", "classifier_versions", ["promoted_at"])


def downgrade() -> None:
    """Forget the orders."""
    op.drop_index("ix_classifier_versions_promoted_at", "classifier_versions")
    op.drop_index("ix_verifications_finished_at", "verifications")
