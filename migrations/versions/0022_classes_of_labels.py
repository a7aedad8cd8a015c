"""Labels keep their prompt's complexity classes and the hash of its system prompt: cells count by them."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Rows of earlier releases have neither; they count in the cells of no class in particular."""
    op.add_column("training_rows", sa.Column("classes", sa.JSON(none_as_null=True)))
    op.add_column("training_rows", sa.Column("app", sa.String(16)))


def downgrade() -> None:
    """Forget them."""
    op.drop_column("training_rows", "app")
    op.drop_column("training_rows", "classes")
