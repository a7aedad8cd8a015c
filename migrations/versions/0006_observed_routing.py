"""What routing would have taken while it is only watched."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Earlier decisions were all in force."""
    op.add_column("routing_decisions", sa.Column("would_be_tier", sa.Integer()))


def downgrade() -> None:
    """Without what would have been."""
    op.drop_column("routing_decisions", "would_be_tier")
