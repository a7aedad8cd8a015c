"""Training rows have no clusters: nothing ever wrote or read the column."""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Drop the column, which is NULL in every row."""
    op.drop_column("training_rows", "cluster")


def downgrade() -> None:
    """Add it again, empty as it was."""
    op.add_column("training_rows", sa.Column("cluster", sa.Integer()))
