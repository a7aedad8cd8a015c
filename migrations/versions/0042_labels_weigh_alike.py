"""A label's chance of being drawn is not stored with it: verifications have it, and labels do not weigh by it."""

from alembic import op
from sqlalchemy import Column

from migrations.tables.columns import Json

revision = "0042"
down_revision = "0041"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Drop the chances of labels."""
    op.drop_column("training_rows", "chances")


def downgrade() -> None:
    """Give labels a chance that is unknown."""
    op.add_column("training_rows", Column("chances", Json))
