"""Times that earlier releases stored although no clock shows them: listings and pages could not show their rows."""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

# The year 2100. Both databases take infinity, and PostgreSQL NaN, for greater.
_MOST = 4_102_444_800.0
# The longest that a caller could have asked for.
_FILE_SECONDS = 2_592_000.0

_files = sa.table("files", sa.column("created_at", sa.Double), sa.column("expires_at", sa.Double))
_keys = sa.table("api_keys", sa.column("expires_at", sa.Double))


def upgrade() -> None:
    """Such a file expires when it may last have been meant to; such a key has no end."""
    late = _files.c.expires_at > _MOST
    op.execute(sa.update(_files).where(late).values(expires_at=_files.c.created_at + _FILE_SECONDS))
    op.execute(sa.update(_keys).where(_keys.c.expires_at > _MOST).values(expires_at=None))


def downgrade() -> None:
    """What was stored is not known, and was of no use."""
