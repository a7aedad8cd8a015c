"""Sessions that were started with a key hold its id and a proof, and no part or hash of the key itself."""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """End the sessions of keys: what they held of a key is deleted with them. Those of users go on."""
    _end_those_of_keys()
    op.drop_column("dashboard_sessions", "key_prefix")
    op.drop_column("dashboard_sessions", "key_digest")
    op.add_column("dashboard_sessions", sa.Column("key_id", sa.String(length=128)))
    op.add_column("dashboard_sessions", sa.Column("key_proof", sa.String(length=64)))


def downgrade() -> None:
    """End them as well: earlier versions cannot check a proof."""
    _end_those_of_keys()
    op.drop_column("dashboard_sessions", "key_proof")
    op.drop_column("dashboard_sessions", "key_id")
    op.add_column("dashboard_sessions", sa.Column("key_prefix", sa.String(length=32)))
    op.add_column("dashboard_sessions", sa.Column("key_digest", sa.String(length=64)))


def _end_those_of_keys() -> None:
    op.execute("DELETE FROM dashboard_sessions WHERE user_name IS NULL")
