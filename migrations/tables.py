"""The schema: every table of the store, so that quality and gateway read and write the same columns.

Conventions. Times are UTC epoch seconds (float). Money is US dollars (float). A structure that is only ever
read whole is a JSON column; everything a query filters, groups or sums is a column of its own.
`key_id` is the pseudonym of the API key a row belongs to, repeated wherever a user's data lives, so that
erasing a user is one DELETE per table. Rows point at requests by `request_id` without a foreign key,
because a request reaches the database behind its journal and may arrive after the row that names it.

Alembic revisions in `versions/` create the same schema step by step; a test checks that they agree.
"""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Computed,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    false,
    text,
)
from sqlalchemy.engine import Dialect


class FreeText(TypeDecorator[str]):
    """Text written by people or models; U+0000, which PostgreSQL refuses, is stored as U+FFFD on every database."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return value if value is None else value.replace("\x00", "\ufffd")


metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# SQLite assigns row numbers only to a key of type INTEGER.
RowId = BigInteger().with_variant(Integer(), "sqlite")
# Python None is SQL NULL, never the JSON word null. PostgreSQL's json (not jsonb) keeps \u0000 of user texts.
Json = JSON(none_as_null=True)

# The filters of requests besides their key; `facet` encodes their combination, so that one index serves all.
REQUEST_FACETS = ("tier", "status", "requested_model")

requests = Table(
    "requests",
    metadata,
    Column("request_id", String(64), primary_key=True),
    Column("created_at", Double, nullable=False),
    Column("api", String(16), nullable=False),  # chat | completion | embedding
    Column("requested_model", FreeText, nullable=False),
    Column("key_id", String(128)),
    Column("stream", Boolean, nullable=False),
    Column("status", String(16), nullable=False),  # ok | error | aborted
    Column("http_status", Integer, nullable=False),
    Column("error", FreeText),
    Column("tier", Integer),  # NULL for an embedding, which has no routing decision either
    Column("model", FreeText, nullable=False),
    Column("attempts", Json, nullable=False),  # list of quality.records.record.Attempt
    Column("messages", Json),  # NULL without consent and after the retention time, like the three below
    Column("answer", FreeText),
    Column("reasoning", FreeText),
    Column("response_format", Json),
    Column("finish_reason", String(32)),
    Column("prompt_tokens", Integer, nullable=False),
    Column("completion_tokens", Integer, nullable=False),
    Column("cached_tokens", Integer, nullable=False),
    Column("reasoning_tokens", Integer, nullable=False),
    Column("cost_usd", Double, nullable=False),
    Column("baseline_cost_usd", Double, nullable=False),
    Column("route_ms", Double, nullable=False),
    Column("ttft_ms", Double),
    Column("e2e_ms", Double, nullable=False),
    Column("overhead_ms", Double, nullable=False),
    Column("queue_ms", Double),  # of the tier that answered, like the two below; NULL: there was no first token
    Column("prefill_ms", Double),
    Column("decode_ms", Double),
    Column("cache", String(16)),  # hit | similar | shared | miss; NULL: the cache had no part in it
    Column("tags", Json),  # the caller's `metadata`, which bills are split by
    Column("replica", String(64)),  # the process that answered, to find the spending of a dead one
    # A prefix of the model's name, because an index does not accept text of any length.
    Column(
        "facet",
        Text,
        Computed("COALESCE(CAST(tier AS TEXT), '') || '/' || status || '/' || SUBSTR(requested_model, 1, 256)"),
    ),
    # Recent spending is read from the index alone, and counts by tier from the one below.
    Index(None, "created_at", "tier", "cost_usd"),
    # Rows with texts, oldest first.
    Index(
        "ix_requests_texts",
        "created_at",
        "tier",
        "api",
        "status",
        sqlite_where=text("messages IS NOT NULL"),
        postgresql_where=text("messages IS NOT NULL"),
    ),
    Index(None, "key_id", "created_at"),
    Index("ix_requests_facet", "facet", "created_at", "request_id"),
    Index("ix_requests_key_id_facet", "key_id", "facet", "created_at", "request_id"),
)

routing_decisions = Table(
    "routing_decisions",
    metadata,
    Column("request_id", ForeignKey("requests.request_id", ondelete="CASCADE"), primary_key=True),
    Column("created_at", Double, nullable=False),
    Column("tier", Integer, nullable=False),  # as decided; requests.tier is the one that answered
    Column("would_be_tier", Integer),  # what routing would have taken, in observe mode
    Column("reason", FreeText, nullable=False),
    Column("classifier_version", String(64), nullable=False),
    Column("prediction_kind", String(16), nullable=False),  # measured | prior | heuristic
    Column("novelty", Double, nullable=False),
    Column("quality_target", Double, nullable=False),
    Column("p_ok", Json, nullable=False),  # list of float, one per tier
    Column("scores", Json, nullable=False),  # list of float or null, one per tier
    Column("inputs", Json, nullable=False),  # classifier.decision.PolicyInputs, from which the decision is replayed
    Column("experiment_id", String(64)),
    Column("arm", String(8)),  # a | b, of that experiment
    Index(None, "created_at"),
    Index(None, "tier", "created_at"),
    Index(None, "classifier_version", "created_at"),
    Index(None, "experiment_id", "created_at"),
    # The newest requests of observe mode.
    Index(
        "ix_routing_decisions_observed",
        "created_at",
        sqlite_where=text("would_be_tier IS NOT NULL"),
        postgresql_where=text("would_be_tier IS NOT NULL"),
    ),
)

# The filters of verifications; `facet` encodes their combination, so that one index serves all.
VERIFICATION_FACETS = ("tier", "status", "label", "judge", "sampled_reason")

verifications = Table(
    "verifications",
    metadata,
    Column("verification_id", RowId, primary_key=True, autoincrement=True),
    Column("request_id", String(64), nullable=False),
    Column("key_id", String(128)),
    Column("tier", Integer, nullable=False),  # the tier whose answer is judged; a probe has one row per tier
    Column("model", FreeText, nullable=False),
    Column("sampled_probability", Double, nullable=False),  # of being sampled, for weighting
    Column("sampled_reason", String(32), nullable=False),  # sample | downgrade | probe | shadow | feedback
    Column("status", String(16), nullable=False),  # pending | done | failed
    Column("verifier_tier", Integer),
    Column("verifier_model", FreeText),
    Column("judge", String(64)),
    Column("judge_reliability", Double),  # balanced accuracy against known outcomes
    Column("label", String(16)),  # no_worse | worse | tie | uncertain; NULL: no verdict
    Column("scores", Json),  # object of floats, by the judge's own names
    Column("verifier_answer", FreeText),  # NULL without consent
    Column("judged_answer", FreeText),  # what the judged tier answered; NULL: its answer was the served one
    Column("judged_cost_usd", Double),  # of that answer alone
    Column("reason", FreeText),  # the judge's, or why there is no label
    Column("cost_usd", Double, nullable=False),  # spent so far, failed attempts included
    Column("reserved_usd", Double, nullable=False),  # the most that the running attempt may still cost, else 0
    Column("attempts", Integer, nullable=False),
    Column("owner", String(128)),  # the worker until `lease_until`; after that another may claim it
    Column("lease_until", Double),
    Column("error", FreeText),
    Column("created_at", Double, nullable=False),
    Column("finished_at", Double),
    Column(
        "facet",
        Text,
        Computed(
            "CAST(tier AS TEXT) || '/' || status || '/' || COALESCE(label, '') || '/' || COALESCE(judge, '') || '/' || "
            "sampled_reason"
        ),
    ),
    Index("uq_verifications_request_id_tier", "request_id", "tier", unique=True),
    Index(None, "created_at"),
    # Everything that the budget check reads.
    Index(
        "ix_verifications_spending",
        "finished_at",
        "verification_id",
        "sampled_reason",
        "status",
        "request_id",
        "cost_usd",
        "reserved_usd",
    ),
    Index(
        "ix_verifications_verdicts",
        "tier",
        "finished_at",
        "verification_id",
        sqlite_where=text("label IS NOT NULL"),
        postgresql_where=text("label IS NOT NULL"),
    ),
    Index(None, "tier", "created_at"),
    Index(None, "status", "created_at"),
    Index(None, "key_id", "created_at"),
    Index("ix_verifications_facet", "facet", "created_at", "verification_id"),
    Index("ix_verifications_key_id_facet", "key_id", "facet", "created_at", "verification_id"),
    Index(
        "ix_verifications_texts",
        "created_at",
        sqlite_where=text("reason IS NOT NULL"),
        postgresql_where=text("reason IS NOT NULL"),
    ),
)

training_rows = Table(
    "training_rows",
    metadata,
    Column("training_row_id", RowId, primary_key=True, autoincrement=True),
    Column("request_id", String(64)),  # NULL for rows without a request
    Column("key_id", String(128)),
    Column("source", String(32), nullable=False),  # verification | probe | feedback | collected | imported
    Column("feature_spec", String(64), nullable=False),  # id of the encoder and features that made the vectors
    Column("embedding", LargeBinary, nullable=False),  # little-endian float32
    Column("features", LargeBinary),  # little-endian float32
    Column("no_worse", Json, nullable=False),  # list of bool or null, one per tier
    Column("correct", Json),  # the same for verifiable prompts only; the two labels are never mixed
    Column("weights", Json, nullable=False),  # list of float, one per tier
    Column("tiers", Json),  # their fingerprints; NULL: unknown
    Column("classes", Json),  # P of the four complexity classes; NULL in rows of earlier releases
    Column("app", String(16)),  # hash of the system prompt
    Column("created_at", Double, nullable=False),
    Index("uq_training_rows_request_id_source", "request_id", "source", unique=True),
    Index(None, "created_at"),
    Index(None, "source", "created_at"),
    Index(None, "key_id", "created_at"),
)

classifier_versions = Table(
    "classifier_versions",
    metadata,
    Column("version", String(64), primary_key=True),
    Column("parent", String(64)),
    Column("path", FreeText, nullable=False),
    Column("status", String(16), nullable=False),  # candidate | canary | promoted | retired | refused | rolled_back
    Column("reason", FreeText, nullable=False),
    Column("metrics", Json, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("promoted_at", Double),
    Column("retired_at", Double),
    Index(None, "status", "created_at"),
    Index(None, "promoted_at"),
    Index(None, "created_at"),
)

retrain_runs = Table(
    "retrain_runs",
    metadata,
    Column("run_id", String(64), primary_key=True),
    Column("trigger", String(32), nullable=False),  # cron | drift | cli | button
    Column("status", String(16), nullable=False),  # running | done | failed
    Column("owner", String(128), nullable=False),
    Column("lease_until", Double, nullable=False),  # after this another owner may take over the run
    Column("step", String(64)),  # the last finished step, after which a resumed run continues
    Column("data_hash", String(64)),
    Column("classifier_version", String(64)),  # the candidate it made
    Column("reason", FreeText),
    Column("error", FreeText),
    Column("metrics", Json),
    Column("created_at", Double, nullable=False),
    Column("finished_at", Double),
    Index(None, "created_at"),
    Index(None, "status", "created_at"),
    Index(None, "trigger", "created_at"),
    Index(None, "status", "trigger", "created_at"),
    # At most one row is running: a second runner's INSERT fails, whatever its clock says.
    Index(
        "uq_retrain_runs_running",
        "status",
        unique=True,
        sqlite_where=text("status = 'running'"),
        postgresql_where=text("status = 'running'"),
    ),
)

rollouts = Table(
    "rollouts",
    metadata,
    Column("rollout_id", String(64), primary_key=True),
    Column("version", String(64), nullable=False),
    Column("incumbent", String(64), nullable=False),  # what served before, and serves again after a rollback
    Column("stage", String(16), nullable=False),  # canary | watch
    Column("status", String(16), nullable=False),  # running | kept | rolled_back | superseded | stopped
    Column("share", Double, nullable=False),  # of the requests, while it is a canary; 0: promoted at once
    Column("settings", Json, nullable=False),  # the rollout's quality.rollout.evidence.RolloutSettings
    Column("evidence", Json),  # quality.rollout.evidence.Evidence of the last check
    Column("reason", FreeText, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("promoted_at", Double),
    Column("finished_at", Double),
    Index(None, "created_at"),
    Index(None, "status", "created_at"),
    # At most one is running: the registry's pointer has room for one.
    Index(
        "uq_rollouts_running",
        "status",
        unique=True,
        sqlite_where=text("status = 'running'"),
        postgresql_where=text("status = 'running'"),
    ),
)

knob_changes = Table(
    "knob_changes",
    metadata,
    Column("knob_change_id", RowId, primary_key=True, autoincrement=True),
    Column("created_at", Double, nullable=False),
    Column("actor", FreeText, nullable=False),
    Column("part", String(64), nullable=False),  # the part with the knob
    Column("model", FreeText),  # of the part, if it has several
    Column("knob", String(64), nullable=False),
    Column("old_value", Json),
    Column("new_value", Json),
    Column("reason", FreeText),
    Column("kept", Boolean, nullable=False, server_default=false()),  # kept across restarts
    Column("refused", FreeText),  # why nothing was changed
    Index(None, "created_at"),
    Index(None, "knob", "created_at"),
)

experiments = Table(
    "experiments",
    metadata,
    Column("experiment_id", String(64), primary_key=True),
    Column("name", FreeText, nullable=False),
    Column("status", String(16), nullable=False),  # running | done | stopped
    Column("config", Json, nullable=False),
    Column("metrics", Json),
    Column("reason", FreeText),
    Column("created_at", Double, nullable=False),
    Column("finished_at", Double),
    Index(None, "created_at"),
    Index(None, "status", "created_at"),
    # At most one is running: the registry's pointer has room for one.
    Index(
        "uq_experiments_running",
        "status",
        unique=True,
        sqlite_where=text("status = 'running'"),
        postgresql_where=text("status = 'running'"),
    ),
)

audit_events = Table(
    "audit_events",
    metadata,
    Column("audit_event_id", RowId, primary_key=True, autoincrement=True),
    Column("created_at", Double, nullable=False),
    Column("actor", FreeText, nullable=False),
    Column("action", String(64), nullable=False),
    Column("subject", FreeText, nullable=False),
    Column("reason", FreeText),
    Column("details", Json),
    Index(None, "created_at"),
    Index(None, "action", "created_at"),
    Index(None, "actor", "created_at"),
    Index(None, "action", "actor", "created_at"),
)

# A user's data are erased up to `erased_at`; records still in a journal are dropped on arrival.
erasures = Table(
    "erasures",
    metadata,
    Column("key_id", String(128), primary_key=True),
    Column("erased_at", Double, nullable=False),
)

# SHA-256 of the embeddings of an erased user's rows, to find artefacts that contain them; kept for a while.
erased_embeddings = Table(
    "erased_embeddings",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("erased_at", Double, nullable=False),
    Index(None, "erased_at"),
)

teams = Table(
    "teams",
    metadata,
    Column("team_id", String(64), primary_key=True),
    Column("name", String(128), nullable=False),
    Column("created_at", Double, nullable=False),
    Index("uq_teams_name", "name", unique=True),
    Index(None, "created_at"),
)

# A key's team never changes, so its spending is the team's.
api_keys = Table(
    "api_keys",
    metadata,
    Column("key_id", String(64), primary_key=True),  # the pseudonym in all other tables
    Column("name", String(128), nullable=False),
    Column("team_id", ForeignKey("teams.team_id")),
    Column("prefix", String(32), nullable=False),  # 8 random characters (48 of 256 bits), by which owners recognise it
    Column("digest", String(64), nullable=False),  # SHA-256 of the key, hexadecimal
    Column("old_prefix", String(32)),  # of the key before the last rotation, which is valid until `old_until`
    Column("old_digest", String(64)),
    Column("old_until", Double),
    Column("scopes", Json, nullable=False),  # list of gateway.requests.caller.Scope
    Column("tiers", Json),  # list of the allowed tier numbers; NULL: all
    Column("models", Json),  # list of the allowed model names; NULL: all
    Column("consent", Boolean, nullable=False),  # texts may be stored, sampled and learned from
    Column("priority_ceiling", Integer, nullable=False),
    Column("requests_per_minute", Integer),
    Column("tokens_per_minute", Integer),
    Column("concurrency", Integer),
    Column("quality", Json),  # a target from 0 to 1, or the name of one; NULL: the server's
    Column("min_tier", Integer),  # the minimum tier; NULL: any
    Column("strict", Boolean, nullable=False, server_default=false()),  # unknown fields of its requests are refused
    Column("aliases", Json),  # its own names of models: name → model; NULL: none
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
    Column("rotated_at", Double),
    Column("revoked_at", Double),
    # The revision of `tenancy_state` when the row was written; replicas read rows above the last revision they saw.
    Column("revision", BigInteger, nullable=False, server_default="0"),
    Index("uq_api_keys_name", "name", unique=True),
    Index(None, "revision", "key_id"),
    Index(None, "created_at"),
    Index(None, "team_id", "created_at"),
)

# Users who sign in to the dashboard by name and password; administrators' keys can sign in as well.
dashboard_users = Table(
    "dashboard_users",
    metadata,
    Column("name", String(128), primary_key=True),
    Column("role", String(16), nullable=False),  # viewer | operator | admin
    Column("password", String(256), nullable=False),  # Argon2id in the PHC format; earlier ones scrypt:N:r:p:salt:hash
    Column("created_at", Double, nullable=False),
    Index(None, "created_at"),
)

# One row per signed-in browser: by a user's name, or by a key.
dashboard_sessions = Table(
    "dashboard_sessions",
    metadata,
    Column("session_id", String(64), primary_key=True),  # SHA-256 of the cookie's value, hexadecimal
    Column("user_name", ForeignKey("dashboard_users.name", ondelete="CASCADE")),
    Column("key_id", String(128)),  # of a key of the settings its name
    Column("key_proof", String(64)),  # HMAC-SHA256 of the key's digest, keyed by the cookie's value; hexadecimal
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Index(None, "user_name"),
    Index(None, "expires_at"),
)

# Money is whole micro-dollars here and below, because budgets need exact sums.
budgets = Table(
    "budgets",
    metadata,
    Column("budget_id", String(64), primary_key=True),
    Column("subject_kind", String(8), nullable=False),  # key | team
    Column("subject", String(128), nullable=False),  # key_id, for static keys the name; or team_id
    Column("period", String(8), nullable=False),  # day | month | total
    Column("amount_microusd", BigInteger, nullable=False),
    Column("created_at", Double, nullable=False),
    Index("uq_budgets_subject_kind_subject_period", "subject_kind", "subject", "period", unique=True),
    Index(None, "created_at"),
    Index(None, "subject", "created_at"),
)

# The share of a budget leased to each replica per period: active leases count `granted`, others `spent`.
budget_leases = Table(
    "budget_leases",
    metadata,
    Column("lease_id", RowId, primary_key=True, autoincrement=True),
    Column("budget_id", ForeignKey("budgets.budget_id", ondelete="CASCADE"), nullable=False),
    Column("period_key", String(16), nullable=False),  # 2030-12-31 | 2030-12 | total
    Column("replica", String(64), nullable=False),
    Column("status", String(16), nullable=False),  # active | returned | lost
    Column("granted_microusd", BigInteger, nullable=False),
    Column("spent_microusd", BigInteger, nullable=False),
    Column("expires_at", Double, nullable=False),  # database time; on SQLite the machine's monotonic time
    Column("created_at", Double, nullable=False),
    Index("uq_budget_leases_budget_id_period_key_replica", "budget_id", "period_key", "replica", unique=True),
)

# One row, incremented by every change of the tables above except the leases; replicas poll it.
tenancy_state = Table(
    "tenancy_state",
    metadata,
    Column("state_id", Integer, primary_key=True, autoincrement=False),
    Column("revision", BigInteger, nullable=False),
    Column("budgets_revision", BigInteger, nullable=False, server_default="0"),  # that of the last change of a budget
)

# Callers' files: inputs and outputs of batches, and others. Their bytes are in `file_parts`.
files = Table(
    "files",
    metadata,
    Column("file_id", String(64), primary_key=True),  # sorts by time
    Column("key_id", String(128)),
    Column("tenant", String(128), nullable=False),  # the owner: a team or a key; "": without keys
    Column("purpose", String(32), nullable=False),  # batch | user_data | batch_output
    Column("filename", FreeText, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("status", String(16), nullable=False),  # uploading | processed
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
    Index(None, "created_at"),
    Index(None, "expires_at"),
    Index(None, "key_id", "created_at"),
    Index(None, "tenant", "file_id"),
    Index(None, "tenant", "purpose", "file_id"),
)

file_parts = Table(
    "file_parts",
    metadata,
    Column("file_id", ForeignKey("files.file_id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),  # from 0
    Column("content", LargeBinary, nullable=False),
)

# A caller's requests for batch processing; the requests themselves are in `batch_lines`.
batches = Table(
    "batches",
    metadata,
    Column("batch_id", String(64), primary_key=True),  # sorts by time
    Column("key_id", String(128)),
    Column("tenant", String(128), nullable=False),  # as of files
    Column("endpoint", String(64), nullable=False),
    Column("input_file_id", String(64), nullable=False),
    Column("completion_window", String(8), nullable=False),
    Column("metadata", Json),
    Column("traceparent", String(64)),  # of the request that created it
    Column("output_seconds", Double),  # after which its output expires; NULL: like files
    # validating | failed | in_progress | finalizing | completed | expired | cancelling | cancelled
    Column("status", String(16), nullable=False),
    Column("errors", Json),  # list of gateway.jobs.batch_input.InputError
    Column("output_file_id", String(64)),
    Column("error_file_id", String(64)),
    Column("total", Integer, nullable=False),
    Column("completed", Integer),  # counted once it has ended
    Column("failed", Integer),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("in_progress_at", Double),
    Column("finalizing_at", Double),
    Column("completed_at", Double),
    Column("failed_at", Double),
    Column("expired_at", Double),
    Column("cancelling_at", Double),
    Column("cancelled_at", Double),
    Column("owner", String(64)),  # the process that reads its input or writes its output, until `lease_until`
    Column("lease_until", Double),  # on the clock of budget leases
    Index(None, "created_at"),
    Index(None, "status", "created_at"),
    Index(None, "key_id", "created_at"),
    Index(None, "key_id", "status", "created_at"),
    Index(None, "tenant", "batch_id"),
)

batch_lines = Table(
    "batch_lines",
    metadata,
    Column("batch_id", ForeignKey("batches.batch_id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),  # of the line in its file, from 1
    Column("custom_id", FreeText, nullable=False),
    Column("status", String(16), nullable=False),  # pending | done | failed | unanswered
    Column("body", FreeText),  # NULL once it is answered
    Column("answer", FreeText),  # the line of the output or error file
    Column("visible_at", Double, nullable=False),  # when it may be taken, by the leases' clock; 0: at once
    Column("taken_by", String(64)),  # the worker until `visible_at`
    Column("deliveries", Integer, nullable=False),
    Column("deaths", Integer, nullable=False, server_default="0"),  # of processes that were answering it
    Index("uq_batch_lines_batch_id_custom_id", "batch_id", "custom_id", unique=True),
    Index(None, "batch_id", "status", "visible_at", "number"),
)

# Responses that a later request may refer to as `previous_response_id`. A row has its own items only, so that deleting
# it, or its retention, deletes them wherever the conversation went.
stored_responses = Table(
    "stored_responses",
    metadata,
    Column("response_id", String(64), primary_key=True),  # also the request's id
    Column("key_id", String(128)),
    Column("tenant", String(128), nullable=False),  # as of files; looked at once the key has found the row
    Column("previous_response_id", String(64)),
    Column("conversation", String(128), nullable=False),  # the id by which routing knows it
    Column("context_bytes", BigInteger, nullable=False),  # of the items of this row and all before it, as JSON
    Column("input", Json, nullable=False),  # list of the request's own items
    Column("response", Json, nullable=False),  # the body of the answer
    Column("created_at", Double, nullable=False),
    Index(None, "created_at"),
    Index(None, "key_id", "created_at"),
)
