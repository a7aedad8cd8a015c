"""How often the process that answered a batch's line ended before the line did."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Not once, as far as is known; processes of the release before this one insert lines without the column."""
    op.add_column("batch_lines", sa.Column("deaths", sa.Integer, nullable=False, server_default="0"))


def downgrade() -> None:
    """Forget it."""
    op.drop_column("batch_lines", "deaths")
