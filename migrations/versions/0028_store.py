"""The schema of revision 0028 in one step: revisions 0001 to 0027 are part of no version that is upgraded from.

A database at an earlier revision is refused (`quality.store.database`); the version that it names brings it here.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = None
branch_labels = None
depends_on = None

# SQLite numbers rows by itself only where the key is spelled INTEGER.
ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _where(condition: str) -> dict[str, Any]:
    """An index of the rows of `condition` alone."""
    return {"sqlite_where": sa.text(condition), "postgresql_where": sa.text(condition)}


def _computed(expression: str) -> sa.Computed:
    """Stored on PostgreSQL, which before version 18 has no others; SQLite adds no stored one to a table."""
    return sa.Computed(expression, persisted=True if op.get_bind().dialect.name == "postgresql" else None)


def _index(table: str, *columns: str) -> None:
    """An index for each of `columns`, names that spaces part."""
    for names in map(str.split, columns):
        op.create_index("_".join(["ix", table, *names]), table, names)


def upgrade() -> None:
    """Create everything."""
    _create_requests()
    _create_verification()
    _create_learning()
    _create_tenancy()
    _create_dashboard()
    _create_api_objects()
    _create_operations()


def downgrade() -> None:
    """Drop everything, children first; a table takes its indices with it."""
    for table in (
        "erased_embeddings",
        "erasures",
        "audit_events",
        "knob_changes",
        "stored_responses",
        "batch_lines",
        "batches",
        "file_parts",
        "files",
        "dashboard_sessions",
        "dashboard_users",
        "tenancy_state",
        "budget_leases",
        "budgets",
        "api_keys",
        "teams",
        "experiments",
        "rollouts",
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
        sa.Column("request_id", sa.String(64), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("api", sa.String(16), nullable=False),
        sa.Column("requested_model", sa.Text(), nullable=False),
        sa.Column("key_id", sa.String(128)),
        sa.Column("stream", sa.Boolean(), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("http_status", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text()),
        sa.Column("tier", sa.Integer()),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("attempts", sa.JSON(), nullable=False),
        sa.Column("messages", sa.JSON()),
        sa.Column("answer", sa.Text()),
        sa.Column("reasoning", sa.Text()),
        sa.Column("response_format", sa.JSON()),
        sa.Column("finish_reason", sa.String(32)),
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
        sa.Column("queue_ms", sa.Double()),
        sa.Column("prefill_ms", sa.Double()),
        sa.Column("decode_ms", sa.Double()),
        sa.Column("cache", sa.String(16)),
        sa.Column("tags", sa.JSON()),
        sa.Column("replica", sa.String(64)),
        sa.Column(
            "facet",
            sa.Text(),
            _computed("COALESCE(CAST(tier AS TEXT), '') || '/' || status || '/' || SUBSTR(requested_model, 1, 256)"),
        ),
        sa.PrimaryKeyConstraint("request_id", name="pk_requests"),
    )
    _index("requests", "created_at tier cost_usd")
    op.create_index("ix_requests_facet", "requests", ["facet", "created_at", "request_id"])
    _index("requests", "key_id created_at")
    op.create_index("ix_requests_key_id_facet", "requests", ["key_id", "facet", "created_at", "request_id"])
    op.create_index(
        "ix_requests_texts", "requests", ["created_at", "tier", "api", "status"], **_where("messages IS NOT NULL")
    )
    op.create_table(
        "routing_decisions",
        sa.Column("request_id", sa.String(64), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("tier", sa.Integer(), nullable=False),
        sa.Column("would_be_tier", sa.Integer()),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("classifier_version", sa.String(64), nullable=False),
        sa.Column("prediction_kind", sa.String(16), nullable=False),
        sa.Column("novelty", sa.Double(), nullable=False),
        sa.Column("quality_target", sa.Double(), nullable=False),
        sa.Column("p_ok", sa.JSON(), nullable=False),
        sa.Column("scores", sa.JSON(), nullable=False),
        sa.Column("inputs", sa.JSON(), nullable=False),
        sa.Column("experiment_id", sa.String(64)),
        sa.Column("arm", sa.String(8)),
        sa.ForeignKeyConstraint(
            ["request_id"], ["requests.request_id"], name="fk_routing_decisions_request_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("request_id", name="pk_routing_decisions"),
    )
    _index("routing_decisions", "classifier_version created_at", "created_at", "experiment_id created_at")
    op.create_index(
        "ix_routing_decisions_observed", "routing_decisions", ["created_at"], **_where("would_be_tier IS NOT NULL")
    )
    _index("routing_decisions", "tier created_at")


def _create_verification() -> None:
    op.create_table(
        "verifications",
        sa.Column("verification_id", ROW_ID, autoincrement=True, nullable=False),
        sa.Column("request_id", sa.String(64), nullable=False),
        sa.Column("key_id", sa.String(128)),
        sa.Column("tier", sa.Integer(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("sampled_probability", sa.Double(), nullable=False),
        sa.Column("sampled_reason", sa.String(32), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("verifier_tier", sa.Integer()),
        sa.Column("verifier_model", sa.Text()),
        sa.Column("judge", sa.String(64)),
        sa.Column("judge_reliability", sa.Double()),
        sa.Column("label", sa.String(16)),
        sa.Column("scores", sa.JSON()),
        sa.Column("verifier_answer", sa.Text()),
        sa.Column("judged_answer", sa.Text()),
        sa.Column("judged_cost_usd", sa.Double()),
        sa.Column("reason", sa.Text()),
        sa.Column("cost_usd", sa.Double(), nullable=False),
        sa.Column("reserved_usd", sa.Double(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("owner", sa.String(128)),
        sa.Column("lease_until", sa.Double()),
        sa.Column("error", sa.Text()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double()),
        sa.Column(
            "facet",
            sa.Text(),
            _computed(
                "CAST(tier AS TEXT) || '/' || status || '/' || COALESCE(label, '') || '/' || COALESCE(judge, '') || "
                "'/' || sampled_reason",
            ),
        ),
        sa.PrimaryKeyConstraint("verification_id", name="pk_verifications"),
    )
    _index("verifications", "created_at")
    op.create_index("ix_verifications_facet", "verifications", ["facet", "created_at", "verification_id"])
    _index("verifications", "key_id created_at")
    op.create_index(
        "ix_verifications_key_id_facet", "verifications", ["key_id", "facet", "created_at", "verification_id"]
    )
    op.create_index(
        "ix_verifications_spending",
        "verifications",
        ["finished_at", "verification_id", "sampled_reason", "status", "request_id", "cost_usd", "reserved_usd"],
    )
    _index("verifications", "status created_at")
    op.create_index("ix_verifications_texts", "verifications", ["created_at"], **_where("reason IS NOT NULL"))
    _index("verifications", "tier created_at")
    op.create_index(
        "ix_verifications_verdicts",
        "verifications",
        ["tier", "finished_at", "verification_id"],
        **_where("label IS NOT NULL"),
    )
    op.create_index("uq_verifications_request_id_tier", "verifications", ["request_id", "tier"], unique=True)
    op.create_table(
        "training_rows",
        sa.Column("training_row_id", ROW_ID, autoincrement=True, nullable=False),
        sa.Column("request_id", sa.String(64)),
        sa.Column("key_id", sa.String(128)),
        sa.Column("source", sa.String(32), nullable=False),
        sa.Column("feature_spec", sa.String(64), nullable=False),
        sa.Column("embedding", sa.LargeBinary(), nullable=False),
        sa.Column("features", sa.LargeBinary()),
        sa.Column("no_worse", sa.JSON(), nullable=False),
        sa.Column("correct", sa.JSON()),
        sa.Column("weights", sa.JSON(), nullable=False),
        sa.Column("tiers", sa.JSON()),
        sa.Column("classes", sa.JSON()),
        sa.Column("app", sa.String(16)),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("training_row_id", name="pk_training_rows"),
    )
    _index("training_rows", "created_at", "key_id created_at", "source created_at")
    op.create_index("uq_training_rows_request_id_source", "training_rows", ["request_id", "source"], unique=True)


def _create_learning() -> None:
    op.create_table(
        "classifier_versions",
        sa.Column("version", sa.String(64), nullable=False),
        sa.Column("parent", sa.String(64)),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("promoted_at", sa.Double()),
        sa.Column("retired_at", sa.Double()),
        sa.PrimaryKeyConstraint("version", name="pk_classifier_versions"),
    )
    _index("classifier_versions", "created_at", "promoted_at", "status created_at")
    op.create_table(
        "retrain_runs",
        sa.Column("run_id", sa.String(64), nullable=False),
        sa.Column("trigger", sa.String(32), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("owner", sa.String(128), nullable=False),
        sa.Column("lease_until", sa.Double(), nullable=False),
        sa.Column("step", sa.String(64)),
        sa.Column("data_hash", sa.String(64)),
        sa.Column("classifier_version", sa.String(64)),
        sa.Column("reason", sa.Text()),
        sa.Column("error", sa.Text()),
        sa.Column("metrics", sa.JSON()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double()),
        sa.PrimaryKeyConstraint("run_id", name="pk_retrain_runs"),
    )
    _index("retrain_runs", "created_at", "status created_at", "status trigger created_at", "trigger created_at")
    op.create_index("uq_retrain_runs_running", "retrain_runs", ["status"], unique=True, **_where("status = 'running'"))
    op.create_table(
        "rollouts",
        sa.Column("rollout_id", sa.String(64), nullable=False),
        sa.Column("version", sa.String(64), nullable=False),
        sa.Column("incumbent", sa.String(64), nullable=False),
        sa.Column("stage", sa.String(16), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("share", sa.Double(), nullable=False),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("evidence", sa.JSON()),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("promoted_at", sa.Double()),
        sa.Column("finished_at", sa.Double()),
        sa.PrimaryKeyConstraint("rollout_id", name="pk_rollouts"),
    )
    _index("rollouts", "created_at", "status created_at")
    op.create_index("uq_rollouts_running", "rollouts", ["status"], unique=True, **_where("status = 'running'"))
    op.create_table(
        "experiments",
        sa.Column("experiment_id", sa.String(64), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("metrics", sa.JSON()),
        sa.Column("reason", sa.Text()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double()),
        sa.PrimaryKeyConstraint("experiment_id", name="pk_experiments"),
    )
    _index("experiments", "created_at", "status created_at")
    op.create_index("uq_experiments_running", "experiments", ["status"], unique=True, **_where("status = 'running'"))


def _create_tenancy() -> None:
    op.create_table(
        "teams",
        sa.Column("team_id", sa.String(64), nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("team_id", name="pk_teams"),
    )
    _index("teams", "created_at")
    op.create_index("uq_teams_name", "teams", ["name"], unique=True)
    op.create_table(
        "api_keys",
        sa.Column("key_id", sa.String(64), nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("team_id", sa.String(64)),
        sa.Column("prefix", sa.String(32), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("old_prefix", sa.String(32)),
        sa.Column("old_digest", sa.String(64)),
        sa.Column("old_until", sa.Double()),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("tiers", sa.JSON()),
        sa.Column("models", sa.JSON()),
        sa.Column("consent", sa.Boolean(), nullable=False),
        sa.Column("priority_ceiling", sa.Integer(), nullable=False),
        sa.Column("requests_per_minute", sa.Integer()),
        sa.Column("tokens_per_minute", sa.Integer()),
        sa.Column("concurrency", sa.Integer()),
        sa.Column("quality", sa.JSON()),
        sa.Column("min_tier", sa.Integer()),
        sa.Column("strict", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("aliases", sa.JSON()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double()),
        sa.Column("rotated_at", sa.Double()),
        sa.Column("revoked_at", sa.Double()),
        sa.Column("revision", sa.BigInteger(), server_default="0", nullable=False),
        sa.ForeignKeyConstraint(["team_id"], ["teams.team_id"], name="fk_api_keys_team_id"),
        sa.PrimaryKeyConstraint("key_id", name="pk_api_keys"),
    )
    _index("api_keys", "created_at", "revision key_id", "team_id created_at")
    op.create_index("uq_api_keys_name", "api_keys", ["name"], unique=True)
    op.create_table(
        "budgets",
        sa.Column("budget_id", sa.String(64), nullable=False),
        sa.Column("subject_kind", sa.String(8), nullable=False),
        sa.Column("subject", sa.String(128), nullable=False),
        sa.Column("period", sa.String(8), nullable=False),
        sa.Column("amount_microusd", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("budget_id", name="pk_budgets"),
    )
    _index("budgets", "created_at", "subject created_at")
    op.create_index(
        "uq_budgets_subject_kind_subject_period", "budgets", ["subject_kind", "subject", "period"], unique=True
    )
    op.create_table(
        "budget_leases",
        sa.Column("lease_id", ROW_ID, autoincrement=True, nullable=False),
        sa.Column("budget_id", sa.String(64), nullable=False),
        sa.Column("period_key", sa.String(16), nullable=False),
        sa.Column("replica", sa.String(64), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("granted_microusd", sa.BigInteger(), nullable=False),
        sa.Column("spent_microusd", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["budget_id"], ["budgets.budget_id"], name="fk_budget_leases_budget_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("lease_id", name="pk_budget_leases"),
    )
    op.create_index(
        "uq_budget_leases_budget_id_period_key_replica",
        "budget_leases",
        ["budget_id", "period_key", "replica"],
        unique=True,
    )
    state = op.create_table(
        "tenancy_state",
        sa.Column("state_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("budgets_revision", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("state_id", name="pk_tenancy_state"),
    )
    op.bulk_insert(state, [{"state_id": 1, "revision": 1}])


def _create_dashboard() -> None:
    op.create_table(
        "dashboard_users",
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("password", sa.String(256), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_dashboard_users"),
    )
    _index("dashboard_users", "created_at")
    op.create_table(
        "dashboard_sessions",
        sa.Column("session_id", sa.String(64), nullable=False),
        sa.Column("user_name", sa.String(128)),
        sa.Column("key_id", sa.String(128)),
        sa.Column("key_proof", sa.String(64)),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_name"], ["dashboard_users.name"], name="fk_dashboard_sessions_user_name", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("session_id", name="pk_dashboard_sessions"),
    )
    _index("dashboard_sessions", "expires_at", "user_name")


def _create_api_objects() -> None:
    op.create_table(
        "files",
        sa.Column("file_id", sa.String(64), nullable=False),
        sa.Column("key_id", sa.String(128)),
        sa.Column("tenant", sa.String(128), nullable=False),
        sa.Column("purpose", sa.String(32), nullable=False),
        sa.Column("filename", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double()),
        sa.PrimaryKeyConstraint("file_id", name="pk_files"),
    )
    _index("files", "created_at", "expires_at", "key_id created_at", "tenant file_id", "tenant purpose file_id")
    op.create_table(
        "file_parts",
        sa.Column("file_id", sa.String(64), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["file_id"], ["files.file_id"], name="fk_file_parts_file_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("file_id", "number", name="pk_file_parts"),
    )
    op.create_table(
        "batches",
        sa.Column("batch_id", sa.String(64), nullable=False),
        sa.Column("key_id", sa.String(128)),
        sa.Column("tenant", sa.String(128), nullable=False),
        sa.Column("endpoint", sa.String(64), nullable=False),
        sa.Column("input_file_id", sa.String(64), nullable=False),
        sa.Column("completion_window", sa.String(8), nullable=False),
        sa.Column("metadata", sa.JSON()),
        sa.Column("traceparent", sa.String(64)),
        sa.Column("output_seconds", sa.Double()),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("errors", sa.JSON()),
        sa.Column("output_file_id", sa.String(64)),
        sa.Column("error_file_id", sa.String(64)),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.Column("completed", sa.Integer()),
        sa.Column("failed", sa.Integer()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("in_progress_at", sa.Double()),
        sa.Column("finalizing_at", sa.Double()),
        sa.Column("completed_at", sa.Double()),
        sa.Column("failed_at", sa.Double()),
        sa.Column("expired_at", sa.Double()),
        sa.Column("cancelling_at", sa.Double()),
        sa.Column("cancelled_at", sa.Double()),
        sa.Column("owner", sa.String(64)),
        sa.Column("lease_until", sa.Double()),
        sa.PrimaryKeyConstraint("batch_id", name="pk_batches"),
    )
    _index(
        "batches", "created_at", "key_id created_at", "key_id status created_at", "status created_at", "tenant batch_id"
    )
    op.create_table(
        "batch_lines",
        sa.Column("batch_id", sa.String(64), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("custom_id", sa.Text(), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("body", sa.Text()),
        sa.Column("answer", sa.Text()),
        sa.Column("visible_at", sa.Double(), nullable=False),
        sa.Column("taken_by", sa.String(64)),
        sa.Column("deliveries", sa.Integer(), nullable=False),
        sa.Column("deaths", sa.Integer(), server_default="0", nullable=False),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.batch_id"], name="fk_batch_lines_batch_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("batch_id", "number", name="pk_batch_lines"),
    )
    _index("batch_lines", "batch_id status visible_at number")
    op.create_index("uq_batch_lines_batch_id_custom_id", "batch_lines", ["batch_id", "custom_id"], unique=True)
    op.create_table(
        "stored_responses",
        sa.Column("response_id", sa.String(64), nullable=False),
        sa.Column("key_id", sa.String(128)),
        sa.Column("tenant", sa.String(128), nullable=False),
        sa.Column("previous_response_id", sa.String(64)),
        sa.Column("conversation", sa.String(128), nullable=False),
        sa.Column("context_bytes", sa.BigInteger(), nullable=False),
        sa.Column("input", sa.JSON(), nullable=False),
        sa.Column("response", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("response_id", name="pk_stored_responses"),
    )
    _index("stored_responses", "created_at", "key_id created_at")


def _create_operations() -> None:
    op.create_table(
        "knob_changes",
        sa.Column("knob_change_id", ROW_ID, autoincrement=True, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("part", sa.String(64), nullable=False),
        sa.Column("model", sa.Text()),
        sa.Column("knob", sa.String(64), nullable=False),
        sa.Column("old_value", sa.JSON()),
        sa.Column("new_value", sa.JSON()),
        sa.Column("reason", sa.Text()),
        sa.Column("kept", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("refused", sa.Text()),
        sa.PrimaryKeyConstraint("knob_change_id", name="pk_knob_changes"),
    )
    _index("knob_changes", "created_at", "knob created_at")
    op.create_table(
        "audit_events",
        sa.Column("audit_event_id", ROW_ID, autoincrement=True, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("details", sa.JSON()),
        sa.PrimaryKeyConstraint("audit_event_id", name="pk_audit_events"),
    )
    _index("audit_events", "action actor created_at", "action created_at", "actor created_at", "created_at")
    op.create_table(
        "erasures",
        sa.Column("key_id", sa.String(128), nullable=False),
        sa.Column("erased_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("key_id", name="pk_erasures"),
    )
    op.create_table(
        "erased_embeddings",
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("erased_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_erased_embeddings"),
    )
    _index("erased_embeddings", "erased_at")
