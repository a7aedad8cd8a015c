"""No artefact keeps embeddings of prompts, so that those of erased users need not be found in them."""

from alembic import op
from sqlalchemy import Column, Double, String

revision = "0045"
down_revision = "0044"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Drop the digests of erased users' embeddings."""
    op.drop_table("erased_embeddings")


def downgrade() -> None:
    """Make the table of digests again, empty."""
    op.create_table(
        "erased_embeddings",
        Column("digest", String(64), primary_key=True),
        Column("erased_at", Double, nullable=False),
    )
    op.create_index("ix_erased_embeddings_erased_at", "erased_embeddings", ["erased_at"])
