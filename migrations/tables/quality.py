"""Tables of the quality loop, in its order: verdicts, training rows, classifiers, and what was tried with them."""

from sqlalchemy import Column, Double, Index, Integer, LargeBinary, String, Table, Text, text

from migrations.tables.columns import FreeText, IndexedComputed, Json, RowId, metadata

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
    Column("status", String(16), nullable=False),  # pending | done | failed | skipped: drawn, and not verified
    Column("verifier_tier", Integer),
    Column("verifier_model", FreeText),
    Column("judge", String(64)),
    Column("judge_reliability", Double),  # balanced accuracy against known outcomes
    Column("judging", String(16)),  # fingerprint of the model that was asked to judge; NULL: none was
    Column("label", String(16)),  # no_worse | worse | tie | uncertain; NULL: no verdict
    Column("scores", Json),  # object of floats, by the judge's own names
    Column("verifier_answer", FreeText),  # NULL without consent
    Column("judged_answer", FreeText),  # what the judged tier answered; NULL: its answer was the served one
    Column("judged_cost_usd", Double),  # of that answer alone
    Column("compared", Json),  # quality.verification.comparison.VerifiedComparison
    Column("turn", Json),  # quality.verification.job.Turn without its tools; only while it is pending
    Column("tools_digest", String(64)),  # of `tool_definitions`
    Column("next_step", String(16)),  # failed: the caller's next request says that a call of the answer failed
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
        IndexedComputed(
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
    # What a tenant's verifications ever cost.
    Index(
        "ix_verifications_paid",
        "key_id",
        "finished_at",
        "cost_usd",
        sqlite_where=text("cost_usd > 0"),
        postgresql_where=text("cost_usd > 0"),
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
    Index(
        "ix_verifications_compared",
        "finished_at",
        sqlite_where=text("compared IS NOT NULL"),
        postgresql_where=text("compared IS NOT NULL"),
    ),
    Index(
        "ix_verifications_judging",
        "judging",
        "finished_at",
        sqlite_where=text("judging IS NOT NULL"),
        postgresql_where=text("judging IS NOT NULL"),
    ),
    Index("ix_verifications_facet", "facet", "created_at", "verification_id"),
    Index("ix_verifications_key_id_facet", "key_id", "facet", "created_at", "verification_id"),
    Index(
        "ix_verifications_texts",
        "created_at",
        sqlite_where=text("reason IS NOT NULL"),
        postgresql_where=text("reason IS NOT NULL"),
    ),
)

# Definitions of tools of waiting verifications, once for all steps of a key's agent that have the same ones.
tool_definitions = Table(
    "tool_definitions",
    metadata,
    Column("digest", String(64), primary_key=True),  # of key and tools
    Column("key_id", String(128)),
    Column("tools", Json, nullable=False),  # list of tiers.conversation.Tool
    Column("used_at", Double, nullable=False),  # when a verification last began to wait with it
    Index(None, "used_at"),
    Index(None, "key_id", "used_at"),
)

training_rows = Table(
    "training_rows",
    metadata,
    Column("training_row_id", RowId, primary_key=True, autoincrement=True),
    Column("request_id", String(64)),  # NULL for rows without a request
    Column("key_id", String(128)),
    Column("source", String(32), nullable=False),  # verification | probe | feedback | review | collected | imported
    Column("feature_spec", String(64), nullable=False),  # id of the encoder and features that made the vectors
    Column("embedding", LargeBinary, nullable=False),  # little-endian float32
    Column("features", LargeBinary),  # little-endian float32
    Column("no_worse", Json, nullable=False),  # list of bool or null, one per tier
    Column("correct", Json),  # the same for verifiable prompts only; the two labels are never mixed
    Column("weights", Json, nullable=False),  # list of float, one per tier
    Column("tiers", Json),  # their fingerprints; NULL: unknown
    Column("classes", Json),  # P of the four complexity classes; NULL in rows of earlier releases
    Column("app", String(16)),  # hash of the system prompt
    Column("import_id", String(64)),  # of `outcome_imports`; NULL: not imported
    Column("judge", String(64)),  # of the label, by name; NULL: a person, an import, or of an earlier release
    Column("created_at", Double, nullable=False),
    Index("uq_training_rows_request_id_source", "request_id", "source", unique=True),
    Index(None, "created_at"),
    Index(None, "source", "created_at"),
    Index(None, "key_id", "created_at"),
    Index(None, "import_id"),
)

# Files of outcomes that were imported, each with the labels it left in `training_rows`, whose keys these know.
outcome_imports = Table(
    "outcome_imports",
    metadata,
    Column("import_id", String(64), primary_key=True),
    Column("file", FreeText, nullable=False),  # its name
    Column("margin", Double, nullable=False),
    Column("weight", Double, nullable=False),
    Column("understood", Json, nullable=False),  # quality.learning.outcome_import.Understood
    Column("created_at", Double, nullable=False),
    Index(None, "created_at"),
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
    Column("settings", Json, nullable=False),  # the rollout's quality.rollout.rollout.RolloutSettings
    Column("evidence", Json),  # quality.rollout.rollout.Evidence of the last check
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
