"""Keys have a quality target of their own and a least tier; training rows say of which tiers their outcomes are."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Keys that are there have neither, and ask for what the server has; of rows the tiers are not known."""
    op.add_column("api_keys", sa.Column("quality", sa.JSON(none_as_null=True)))
    op.add_column("api_keys", sa.Column("min_tier", sa.Integer))
    op.add_column("training_rows", sa.Column("tiers", sa.JSON(none_as_null=True)))


def downgrade() -> None:
    """Forget them."""
    op.drop_column("training_rows", "tiers")
    op.drop_column("api_keys", "min_tier")
    op.drop_column("api_keys", "quality")
