"""The tags that callers put on their requests."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Requests from before had none that were kept."""
    op.add_column("requests", sa.Column("tags", sa.JSON(none_as_null=True)))


def downgrade() -> None:
    """Forget them."""
    op.drop_column("requests", "tags")
