"""Requests are listed by status and by the model that was asked for too."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

FACET = "COALESCE(CAST(tier AS TEXT), '') || '/' || status || '/' || SUBSTR(requested_model, 1, 256)"
# Replaced by the indexes on all of what requests are filtered by.
BEFORE = (["tier", "created_at"], ["key_id", "tier", "created_at"])


def upgrade() -> None:
    """PostgreSQL writes the table anew, and nobody uses it meanwhile: minutes at many millions of requests."""
    # SQLite adds no column that is stored, PostgreSQL before 18 none that is not.
    stored = op.get_bind().dialect.name == "postgresql" or None
    op.add_column("requests", sa.Column("facet", sa.Text(), sa.Computed(FACET, persisted=stored)))
    op.create_index("ix_requests_facet", "requests", ["facet", "created_at", "request_id"])
    op.create_index("ix_requests_key_id_facet", "requests", ["key_id", "facet", "created_at", "request_id"])
    for columns in BEFORE:
        op.drop_index(f"ix_requests_{'_'.join(columns)}", "requests")


def downgrade() -> None:
    """Back to an index for tiers alone."""
    for columns in BEFORE:
        op.create_index(f"ix_requests_{'_'.join(columns)}", "requests", columns)
    op.drop_index("ix_requests_key_id_facet", "requests")
    op.drop_index("ix_requests_facet", "requests")
    op.drop_column("requests", "facet")
