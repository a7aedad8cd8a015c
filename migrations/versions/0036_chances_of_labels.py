"""With which chance the labels of a training row were drawn, by tier, so that they can weigh by its inverse; and an
index that holds what a day's requests saved."""

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None

INDEX, TIME = "ix_requests_created_at_tier_cost_usd", ["created_at", "tier", "cost_usd"]


def upgrade() -> None:
    """Of earlier rows nothing is known."""
    op.drop_index(INDEX, "requests")
    op.create_index(INDEX, "requests", [*TIME, "baseline_cost_usd"])
    op.add_column("training_rows", sa.Column("chances", sa.JSON(none_as_null=True)))


def downgrade() -> None:
    """Forget them."""
    op.drop_column("training_rows", "chances")
    op.drop_index(INDEX, "requests")
    op.create_index(INDEX, "requests", TIME)
