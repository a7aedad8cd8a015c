"""Batches of requests, and their lines, which are a queue as well."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Two tables; a batch's lines go with it."""
    times = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
    op.create_table(
        "batches",
        sa.Column("batch_id", sa.String(64), nullable=False),
        sa.Column("key_id", sa.String(128)),
        sa.Column("tenant", sa.String(128), nullable=False),
        sa.Column("endpoint", sa.String(64), nullable=False),
        sa.Column("input_file_id", sa.String(64), nullable=False),
        sa.Column("completion_window", sa.String(8), nullable=False),
        sa.Column("metadata", sa.JSON),
        sa.Column("traceparent", sa.String(64)),
        sa.Column("output_seconds", sa.Double),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("errors", sa.JSON),
        sa.Column("output_file_id", sa.String(64)),
        sa.Column("error_file_id", sa.String(64)),
        sa.Column("total", sa.Integer, nullable=False),
        sa.Column("completed", sa.Integer),
        sa.Column("failed", sa.Integer),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        *(sa.Column(f"{name}_at", sa.Double) for name in times),
        sa.Column("owner", sa.String(64)),
        sa.Column("lease_until", sa.Double),
        sa.PrimaryKeyConstraint("batch_id", name="pk_batches"),
    )
    for columns in (("created_at",), ("status", "created_at"), ("key_id", "created_at"),
                    ("key_id", "status", "created_at"), ("tenant", "batch_id")):  # fmt: skip
        op.create_index(f"ix_batches_{'_'.join(columns)}", "batches", list(columns))
    op.create_table(
        "batch_lines",
        sa.Column("batch_id", sa.String(64), nullable=False),
        sa.Column("number", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("custom_id", sa.Text, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("body", sa.Text),
        sa.Column("answer", sa.Text),
        sa.Column("visible_at", sa.Double, nullable=False),
        sa.Column("taken_by", sa.String(64)),
        sa.Column("deliveries", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("batch_id", "number", name="pk_batch_lines"),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.batch_id"], name="fk_batch_lines_batch_id", ondelete="CASCADE"),
    )
    op.create_index("uq_batch_lines_batch_id_custom_id", "batch_lines", ["batch_id", "custom_id"], unique=True)
    ready = ["batch_id", "status", "visible_at", "number"]
    op.create_index("ix_batch_lines_batch_id_status_visible_at_number", "batch_lines", ready)


def downgrade() -> None:
    """Forget them."""
    op.drop_table("batch_lines")
    op.drop_table("batches")
