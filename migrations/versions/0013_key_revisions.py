"""Keys carry the revision that they were written at, so that replicas read only what changed."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Rows that are there count as written before all revisions; whoever starts reads those too."""
    op.add_column("api_keys", sa.Column("revision", sa.BigInteger(), nullable=False, server_default="0"))
    op.create_index("ix_api_keys_revision_key_id", "api_keys", ["revision", "key_id"])
    op.add_column("tenancy_state", sa.Column("budgets_revision", sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    """Back to reading all of them."""
    op.drop_column("tenancy_state", "budgets_revision")
    op.drop_index("ix_api_keys_revision_key_id", "api_keys")
    op.drop_column("api_keys", "revision")
