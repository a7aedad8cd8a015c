"""How long a request waited, was read and was answered, beside what it took in all."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

STAGES = ("queue_ms", "prefill_ms", "decode_ms")


def upgrade() -> None:
    """Of requests before this it is not known."""
    for stage in STAGES:
        op.add_column("requests", sa.Column(stage, sa.Double()))


def downgrade() -> None:
    """Forget the stages."""
    for stage in reversed(STAGES):
        op.drop_column("requests", stage)
