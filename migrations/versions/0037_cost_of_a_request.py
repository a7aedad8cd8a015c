"""The most that a request of a key may be predicted to cost."""

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None

COLUMN = "max_cost_usd_per_request"


def upgrade() -> None:
    """Keys have no bound so far."""
    op.add_column("api_keys", sa.Column(COLUMN, sa.Double))


def downgrade() -> None:
    """Forget it."""
    op.drop_column("api_keys", COLUMN)
