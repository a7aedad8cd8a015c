"""Which requests had answers of several tiers compared, and what verifications found on answers that they compared."""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

COMPARED = sa.text("compared IS NOT NULL")


def upgrade() -> None:
    """Of earlier requests and verifications nothing is known."""
    op.add_column("requests", sa.Column("compared", sa.String(16)))
    op.create_index(
        "ix_requests_compared",
        "requests",
        ["compared", "created_at"],
        sqlite_where=COMPARED,
        postgresql_where=COMPARED,
    )
    op.add_column("verifications", sa.Column("compared", sa.JSON(none_as_null=True)))
    op.create_index(
        "ix_verifications_compared",
        "verifications",
        ["finished_at"],
        sqlite_where=COMPARED,
        postgresql_where=COMPARED,
    )


def downgrade() -> None:
    """Forget them."""
    op.drop_index("ix_verifications_compared", "verifications")
    op.drop_column("verifications", "compared")
    op.drop_index("ix_requests_compared", "requests")
    op.drop_column("requests", "compared")
