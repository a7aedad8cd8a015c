"""Keys may be strict, so that their requests' unknown fields are refused, and have names of their own for models."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Keys of earlier releases get the new default: unknown fields are ignored."""
    op.add_column("api_keys", sa.Column("strict", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("api_keys", sa.Column("aliases", sa.JSON(none_as_null=True)))


def downgrade() -> None:
    """Forget them."""
    op.drop_column("api_keys", "aliases")
    op.drop_column("api_keys", "strict")
