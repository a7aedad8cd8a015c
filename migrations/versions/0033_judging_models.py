"""Which model, by its fingerprint, judged an answer: a judge's error rates are counted by it."""

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

JUDGING = sa.text("judging IS NOT NULL")


def upgrade() -> None:
    """Of earlier verifications nothing is known."""
    op.add_column("verifications", sa.Column("judging", sa.String(16)))
    op.create_index(
        "ix_verifications_judging",
        "verifications",
        ["judging", "finished_at"],
        sqlite_where=JUDGING,
        postgresql_where=JUDGING,
    )


def downgrade() -> None:
    """Forget them."""
    op.drop_index("ix_verifications_judging", "verifications")
    op.drop_column("verifications", "judging")
