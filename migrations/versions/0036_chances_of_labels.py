"""With which chance the labels of a training row were drawn, by tier, so that they can weigh by its inverse."""

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Of earlier rows nothing is known."""
    op.add_column("training_rows", sa.Column("chances", sa.JSON(none_as_null=True)))


def downgrade() -> None:
    """Forget them."""
    op.drop_column("training_rows", "chances")
