"""Keys, teams, budgets and their leases; and which process answered a request."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the tables, and the one row that counts changes."""
    row_id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.add_column("requests", sa.Column("replica", sa.String(length=64)))
    op.create_table(
        "teams",
        sa.Column("team_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("team_id", name="pk_teams"),
    )
    op.create_index("uq_teams_name", "teams", ["name"], unique=True)
    op.create_index("ix_teams_created_at", "teams", ["created_at"])
    op.create_table(
        "api_keys",
        sa.Column("key_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("team_id", sa.String(length=64)),
        sa.Column("prefix", sa.String(length=32), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("old_prefix", sa.String(length=32)),
        sa.Column("old_digest", sa.String(length=64)),
        sa.Column("old_until", sa.Double()),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("tiers", sa.JSON()),
        sa.Column("models", sa.JSON()),
        sa.Column("consent", sa.Boolean(), nullable=False),
        sa.Column("priority_ceiling", sa.Integer(), nullable=False),
        sa.Column("requests_per_minute", sa.Integer()),
        sa.Column("tokens_per_minute", sa.Integer()),
        sa.Column("concurrency", sa.Integer()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double()),
        sa.Column("rotated_at", sa.Double()),
        sa.Column("revoked_at", sa.Double()),
        sa.PrimaryKeyConstraint("key_id", name="pk_api_keys"),
        sa.ForeignKeyConstraint(["team_id"], ["teams.team_id"], name="fk_api_keys_team_id"),
    )
    op.create_index("uq_api_keys_name", "api_keys", ["name"], unique=True)
    op.create_index("ix_api_keys_created_at", "api_keys", ["created_at"])
    op.create_index("ix_api_keys_team_id_created_at", "api_keys", ["team_id", "created_at"])
    op.create_table(
        "budgets",
        sa.Column("budget_id", sa.String(length=64), nullable=False),
        sa.Column("subject_kind", sa.String(length=8), nullable=False),
        sa.Column("subject", sa.String(length=128), nullable=False),
        sa.Column("period", sa.String(length=8), nullable=False),
        sa.Column("amount_microusd", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("budget_id", name="pk_budgets"),
    )
    subject = ["subject_kind", "subject", "period"]
    op.create_index("uq_budgets_subject_kind_subject_period", "budgets", subject, unique=True)
    op.create_index("ix_budgets_created_at", "budgets", ["created_at"])
    op.create_index("ix_budgets_subject_created_at", "budgets", ["subject", "created_at"])
    op.create_table(
        "budget_leases",
        sa.Column("lease_id", row_id, autoincrement=True, nullable=False),
        sa.Column("budget_id", sa.String(length=64), nullable=False),
        sa.Column("period_key", sa.String(length=16), nullable=False),
        sa.Column("replica", sa.String(length=64), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("granted_microusd", sa.BigInteger(), nullable=False),
        sa.Column("spent_microusd", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("lease_id", name="pk_budget_leases"),
        sa.ForeignKeyConstraint(
            ["budget_id"], ["budgets.budget_id"], name="fk_budget_leases_budget_id", ondelete="CASCADE"
        ),
    )
    one = ["budget_id", "period_key", "replica"]
    op.create_index("uq_budget_leases_budget_id_period_key_replica", "budget_leases", one, unique=True)
    state = op.create_table(
        "tenancy_state",
        sa.Column("state_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("state_id", name="pk_tenancy_state"),
    )
    op.bulk_insert(state, [{"state_id": 1, "revision": 1}])


def downgrade() -> None:
    """Drop them: static keys remain."""
    for table in ("tenancy_state", "budget_leases", "budgets", "api_keys", "teams"):
        op.drop_table(table)
    op.drop_column("requests", "replica")
