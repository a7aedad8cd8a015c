"""Requests for embeddings are in the ledger: no tier answers them."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Tiers need not be known. SQLite builds the table anew."""
    with op.batch_alter_table("requests") as table:
        table.alter_column("tier", existing_type=sa.Integer(), nullable=True)


def downgrade() -> None:
    """Forget the requests without one."""
    op.execute("DELETE FROM requests WHERE tier IS NULL")
    with op.batch_alter_table("requests") as table:
        table.alter_column("tier", existing_type=sa.Integer(), nullable=False)
