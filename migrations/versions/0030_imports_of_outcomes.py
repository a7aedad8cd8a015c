"""Imported labels know their import, so that one can be listed and deleted."""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """One table, and a column of labels, which is empty for imports of earlier releases."""
    op.create_table(
        "outcome_imports",
        sa.Column("import_id", sa.String(64), nullable=False),
        sa.Column("file", sa.Text, nullable=False),
        sa.Column("margin", sa.Double, nullable=False),
        sa.Column("weight", sa.Double, nullable=False),
        sa.Column("understood", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("import_id", name="pk_outcome_imports"),
    )
    op.create_index("ix_outcome_imports_created_at", "outcome_imports", ["created_at"])
    op.add_column("training_rows", sa.Column("import_id", sa.String(64)))
    op.create_index("ix_training_rows_import_id", "training_rows", ["import_id"])


def downgrade() -> None:
    """Forget them."""
    op.drop_index("ix_training_rows_import_id", "training_rows")
    op.drop_column("training_rows", "import_id")
    op.drop_table("outcome_imports")
