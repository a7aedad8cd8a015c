"""Keys have a quality target of their own, and a tier below which their requests are never answered."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Keys that are there have neither, and ask for what the server has."""
    op.add_column("api_keys", sa.Column("quality", sa.JSON(none_as_null=True)))
    op.add_column("api_keys", sa.Column("min_tier", sa.Integer))


def downgrade() -> None:
    """Forget them."""
    op.drop_column("api_keys", "min_tier")
    op.drop_column("api_keys", "quality")
