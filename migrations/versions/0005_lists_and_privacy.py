"""Lists by any combination of filters, texts that are kept for a while, and what erased users leave in artefacts."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

FACET = (
    "CAST(tier AS TEXT) || '/' || status || '/' || COALESCE(label, '') || '/' || COALESCE(judge, '') || '/' || "
    "sampled_reason"
)
# Replaced by the index on all of what verifications are filtered by.
SINGLE = ("label", "judge", "sampled_reason")
PAIRS = (("retrain_runs", "status", "trigger"), ("audit_events", "action", "actor"))
TEXTS = (("requests", "messages"), ("verifications", "reason"))


def upgrade() -> None:
    """On large tables the indexes take a while."""
    op.add_column("requests", sa.Column("response_format", sa.JSON()))
    for table, column in TEXTS:
        held = sa.text(f"{column} IS NOT NULL")
        op.create_index(f"ix_{table}_texts", table, ["created_at"], sqlite_where=held, postgresql_where=held)
    for column in SINGLE:
        op.drop_index(f"ix_verifications_{column}_created_at", "verifications")
    # SQLite adds no column that is stored, PostgreSQL before 18 none that is not.
    stored = op.get_bind().dialect.name == "postgresql" or None
    op.add_column("verifications", sa.Column("facet", sa.Text(), sa.Computed(FACET, persisted=stored)))
    columns = ["facet", "created_at", "verification_id"]
    op.create_index("ix_verifications_facet", "verifications", columns)
    op.create_index("ix_verifications_key_id_facet", "verifications", ["key_id", *columns])
    for table, first, second in PAIRS:
        op.create_index(f"ix_{table}_{first}_{second}_created_at", table, [first, second, "created_at"])
    op.create_table(
        "erased_embeddings",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("erased_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_erased_embeddings"),
    )
    op.create_index("ix_erased_embeddings_erased_at", "erased_embeddings", ["erased_at"])


def downgrade() -> None:
    """Back to an index per column."""
    op.drop_table("erased_embeddings")
    for table, first, second in PAIRS:
        op.drop_index(f"ix_{table}_{first}_{second}_created_at", table)
    op.drop_index("ix_verifications_key_id_facet", "verifications")
    op.drop_index("ix_verifications_facet", "verifications")
    op.drop_column("verifications", "facet")
    for column in SINGLE:
        op.create_index(f"ix_verifications_{column}_created_at", "verifications", [column, "created_at"])
    for table, _ in TEXTS:
        op.drop_index(f"ix_{table}_texts", table)
    op.drop_column("requests", "response_format")
