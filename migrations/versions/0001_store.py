"""The store: requests and their routing, verifications, training, classifier versions, knobs, experiments, audit."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# SQLite numbers rows by itself only where the key is spelled INTEGER.
ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create everything."""
    _create_requests()
    _create_verification()
    _create_learning()
    _create_operations()


def downgrade() -> None:
    """Drop everything, children first; a table takes its indices with it."""
    for table in (
        "erasures",
        "audit_events",
        "experiments",
        "knob_changes",
        "retrain_runs",
        "classifier_versions",
        "training_rows",
        "verifications",
        "routing_decisions",
        "requests",
    ):
        op.drop_table(table)


def _create_requests() -> None:
    op.create_table(
        "requests",
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("api", sa.String(length=16), nullable=False),
        sa.Column("requested_model", sa.Text(), nullable=False),
        sa.Column("key_id", sa.String(length=128)),
        sa.Column("stream", sa.Boolean(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("http_status", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text()),
        sa.Column("tier", sa.Integer(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("attempts", sa.JSON(), nullable=False),
        sa.Column("messages", sa.JSON()),
        sa.Column("answer", sa.Text()),
        sa.Column("reasoning", sa.Text()),
        sa.Column("finish_reason", sa.String(length=32)),
        sa.Column("prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("completion_tokens", sa.Integer(), nullable=False),
        sa.Column("cached_tokens", sa.Integer(), nullable=False),
        sa.Column("reasoning_tokens", sa.Integer(), nullable=False),
        sa.Column("cost_usd", sa.Double(), nullable=False),
        sa.Column("baseline_cost_usd", sa.Double(), nullable=False),
        sa.Column("route_ms", sa.Double(), nullable=False),
        sa.Column("ttft_ms", sa.Double()),
        sa.Column("e2e_ms", sa.Double(), nullable=False),
        sa.Column("overhead_ms", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("request_id", name="pk_requests"),
    )
    op.create_index("ix_requests_created_at", "requests", ["created_at"])
    op.create_index("ix_requests_key_id_created_at", "requests", ["key_id", "created_at"])
    op.create_index("ix_requests_tier_created_at", "requests", ["tier", "created_at"])
    op.create_table(
        "routing_decisions",
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("tier", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("classifier_version", sa.String(length=64), nullable=False),
        sa.Column("prediction_kind", sa.String(length=16), nullable=False),
        sa.Column("novelty", sa.Double(), nullable=False),
        sa.Column("quality_target", sa.Double(), nullable=False),
        sa.Column("p_ok", sa.JSON(), nullable=False),
        sa.Column("scores", sa.JSON(), nullable=False),
        sa.Column("inputs", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["request_id"], ["requests.request_id"], name="fk_routing_decisions_request_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("request_id", name="pk_routing_decisions"),
    )
    op.create_index(
        "ix_routing_decisions_classifier_version_created_at", "routing_decisions", ["classifier_version", "created_at"]
    )
    op.create_index("ix_routing_decisions_created_at", "routing_decisions", ["created_at"])
    op.create_index("ix_routing_decisions_tier_created_at", "routing_decisions", ["tier", "created_at"])


def _create_verification() -> None:
    op.create_table(
        "verifications",
        sa.Column("verification_id", ROW_ID, autoincrement=True, nullable=False),
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("key_id", sa.String(length=128)),
        sa.Column("tier", sa.Integer(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("sampled_probability", sa.Double(), nullable=False),
        sa.Column("sampled_reason", sa.String(length=32), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("verifier_tier", sa.Integer()),
        sa.Column("verifier_model", sa.Text()),
        sa.Column("judge", sa.String(length=64)),
        sa.Column("judge_reliability", sa.Double()),
        sa.Column("label", sa.String(length=16)),
        sa.Column("scores", sa.JSON()),
        sa.Column("verifier_answer", sa.Text()),
        sa.Column("reason", sa.Text()),
        sa.Column("cost_usd", sa.Double(), nullable=False),
        sa.Column("reserved_usd", sa.Double(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("owner", sa.String(length=128)),
        sa.Column("lease_until", sa.Double()),
        sa.Column("error", sa.Text()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double()),
        sa.PrimaryKeyConstraint("verification_id", name="pk_verifications"),
    )
    op.create_index("ix_verifications_created_at", "verifications", ["created_at"])
    op.create_index("ix_verifications_key_id_created_at", "verifications", ["key_id", "created_at"])
    op.create_index("ix_verifications_status_created_at", "verifications", ["status", "created_at"])
    op.create_index("ix_verifications_tier_created_at", "verifications", ["tier", "created_at"])
    op.create_index("uq_verifications_request_id_tier", "verifications", ["request_id", "tier"], unique=True)


def _create_learning() -> None:
    op.create_table(
        "training_rows",
        sa.Column("training_row_id", ROW_ID, autoincrement=True, nullable=False),
        sa.Column("request_id", sa.String(length=64)),
        sa.Column("key_id", sa.String(length=128)),
        sa.Column("source", sa.String(length=32), nullable=False),
        sa.Column("feature_spec", sa.String(length=64), nullable=False),
        sa.Column("embedding", sa.LargeBinary(), nullable=False),
        sa.Column("features", sa.LargeBinary()),
        sa.Column("no_worse", sa.JSON(), nullable=False),
        sa.Column("correct", sa.JSON()),
        sa.Column("weights", sa.JSON(), nullable=False),
        sa.Column("cluster", sa.Integer()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("training_row_id", name="pk_training_rows"),
    )
    op.create_index("ix_training_rows_created_at", "training_rows", ["created_at"])
    op.create_index("ix_training_rows_key_id_created_at", "training_rows", ["key_id", "created_at"])
    op.create_index("ix_training_rows_source_created_at", "training_rows", ["source", "created_at"])
    op.create_index("uq_training_rows_request_id_source", "training_rows", ["request_id", "source"], unique=True)
    op.create_table(
        "classifier_versions",
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.Column("parent", sa.String(length=64)),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("promoted_at", sa.Double()),
        sa.Column("retired_at", sa.Double()),
        sa.PrimaryKeyConstraint("version", name="pk_classifier_versions"),
    )
    op.create_index("ix_classifier_versions_created_at", "classifier_versions", ["created_at"])
    op.create_index("ix_classifier_versions_status_created_at", "classifier_versions", ["status", "created_at"])
    op.create_table(
        "retrain_runs",
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("trigger", sa.String(length=32), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("owner", sa.String(length=128), nullable=False),
        sa.Column("lease_until", sa.Double(), nullable=False),
        sa.Column("step", sa.String(length=64)),
        sa.Column("data_hash", sa.String(length=64)),
        sa.Column("classifier_version", sa.String(length=64)),
        sa.Column("reason", sa.Text()),
        sa.Column("error", sa.Text()),
        sa.Column("metrics", sa.JSON()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double()),
        sa.PrimaryKeyConstraint("run_id", name="pk_retrain_runs"),
    )
    op.create_index("ix_retrain_runs_created_at", "retrain_runs", ["created_at"])
    op.create_index(
        "uq_retrain_runs_running",
        "retrain_runs",
        ["status"],
        unique=True,
        sqlite_where=sa.text("status = 'running'"),
        postgresql_where=sa.text("status = 'running'"),
    )


def _create_operations() -> None:
    op.create_table(
        "knob_changes",
        sa.Column("knob_change_id", ROW_ID, autoincrement=True, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("part", sa.String(length=64), nullable=False),
        sa.Column("knob", sa.String(length=64), nullable=False),
        sa.Column("old_value", sa.JSON()),
        sa.Column("new_value", sa.JSON()),
        sa.Column("reason", sa.Text()),
        sa.PrimaryKeyConstraint("knob_change_id", name="pk_knob_changes"),
    )
    op.create_index("ix_knob_changes_created_at", "knob_changes", ["created_at"])
    op.create_index("ix_knob_changes_knob_created_at", "knob_changes", ["knob", "created_at"])
    op.create_table(
        "experiments",
        sa.Column("experiment_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("metrics", sa.JSON()),
        sa.Column("reason", sa.Text()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double()),
        sa.PrimaryKeyConstraint("experiment_id", name="pk_experiments"),
    )
    op.create_index("ix_experiments_created_at", "experiments", ["created_at"])
    op.create_index("ix_experiments_status_created_at", "experiments", ["status", "created_at"])
    op.create_table(
        "audit_events",
        sa.Column("audit_event_id", ROW_ID, autoincrement=True, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.String(length=64), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("details", sa.JSON()),
        sa.PrimaryKeyConstraint("audit_event_id", name="pk_audit_events"),
    )
    op.create_index("ix_audit_events_action_created_at", "audit_events", ["action", "created_at"])
    op.create_index("ix_audit_events_created_at", "audit_events", ["created_at"])
    op.create_table(
        "erasures",
        sa.Column("key_id", sa.String(length=128), nullable=False),
        sa.Column("erased_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("key_id", name="pk_erasures"),
    )
