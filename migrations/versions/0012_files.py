"""Files that callers keep, in parts."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Two tables; a file's parts go with it."""
    op.create_table(
        "files",
        sa.Column("file_id", sa.String(64), nullable=False),
        sa.Column("key_id", sa.String(128)),
        sa.Column("tenant", sa.String(128), nullable=False),
        sa.Column("purpose", sa.String(32), nullable=False),
        sa.Column("filename", sa.Text, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double),
        sa.PrimaryKeyConstraint("file_id", name="pk_files"),
    )
    op.create_index("ix_files_created_at", "files", ["created_at"])
    op.create_index("ix_files_expires_at", "files", ["expires_at"])
    op.create_index("ix_files_key_id_created_at", "files", ["key_id", "created_at"])
    op.create_index("ix_files_tenant_file_id", "files", ["tenant", "file_id"])
    op.create_index("ix_files_tenant_purpose_file_id", "files", ["tenant", "purpose", "file_id"])
    op.create_table(
        "file_parts",
        sa.Column("file_id", sa.String(64), nullable=False),
        sa.Column("number", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("file_id", "number", name="pk_file_parts"),
        sa.ForeignKeyConstraint(["file_id"], ["files.file_id"], name="fk_file_parts_file_id", ondelete="CASCADE"),
    )


def downgrade() -> None:
    """Forget them."""
    op.drop_table("file_parts")
    op.drop_table("files")
