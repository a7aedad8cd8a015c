"""Tables of requests: what was asked and answered, and how it was routed."""

from sqlalchemy import Boolean, Column, Double, ForeignKey, Index, Integer, String, Table, Text, text

from migrations.tables.columns import FreeText, IndexedComputed, Json, PackedJson, PackedText, metadata

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
    Column("attempts", PackedJson, nullable=False),  # list of quality.records.record.Attempt
    Column("compared", String(16)),  # the kind of answers that cheap tiers gave to be compared; NULL: none were
    Column("messages", Json),  # NULL without consent and after the retention time, like the three below
    Column("answer", FreeText),
    Column("reasoning", FreeText),
    Column("response_format", Json),
    Column("consent", Json),  # tiers.catalog.consent.Consent: which tiers may see the texts; NULL: any
    Column("finish_reason", String(32)),
    Column("prompt_tokens", Integer, nullable=False),
    Column("completion_tokens", Integer, nullable=False),
    Column("cached_tokens", Integer, nullable=False),
    Column("reasoning_tokens", Integer, nullable=False),
    Column("cost_usd", Double, nullable=False),
    Column("baseline_cost_usd", Double, nullable=False),
    Column("estimated_usd", Double),  # of cost_usd: what no server has counted; NULL: nothing
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
        IndexedComputed("COALESCE(CAST(tier AS TEXT), '') || '/' || status || '/' || SUBSTR(requested_model, 1, 256)"),
    ),
    # Recent spending and the traffic over time are read from the index alone, and counts by tier from the one below.
    Index("ix_requests_traffic", "created_at", "tier", "cost_usd", "baseline_cost_usd", "status", "ttft_ms"),
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
    # The newest requests whose answers were compared, by kind.
    Index(
        "ix_requests_compared",
        "compared",
        "created_at",
        sqlite_where=text("compared IS NOT NULL"),
        postgresql_where=text("compared IS NOT NULL"),
    ),
    # What a tenant's requests cost and saved is read from the index alone.
    Index("ix_requests_key_id_created_at", "key_id", "created_at", "tier", "cost_usd", "baseline_cost_usd"),
    # Rows of the same time are sorted by their ids as they are read.
    Index("ix_requests_facet", "facet", "created_at"),
    Index("ix_requests_key_id_facet", "key_id", "facet", "created_at"),
)

# Requests that were refused before there was an answer, counted by minute: a flood of strangers is one row a minute.
refused_requests = Table(
    "refused_requests",
    metadata,
    Column("refusal_id", String(32), primary_key=True),  # digest of the minute and the six columns that follow it
    Column("created_at", Double, nullable=False),  # the minute's start
    Column("key_id", String(128)),  # NULL: no known key
    Column("status", Integer, nullable=False),
    Column("code", String(64), nullable=False),  # of the error envelope; "": it has none
    Column("reason", String(256), nullable=False),  # which limit, and whose; "": the message says all
    Column("path", String(128), nullable=False),  # as the endpoint declares it; "": no endpoint
    Column("count", Integer, nullable=False),
    Column("last_at", Double, nullable=False),
    Column("last_request_id", String(128), nullable=False),
    Column("last_message", FreeText),  # NULL where texts may not be stored
    Index(None, "created_at"),
    Index(None, "key_id", "created_at"),
    Index(None, "code", "created_at"),
    Index(None, "key_id", "code", "created_at"),
)

session_steps = Table(
    "session_steps",
    metadata,
    Column("request_id", ForeignKey("requests.request_id", ondelete="CASCADE"), primary_key=True),
    Column("session", String(32), nullable=False),  # the digest of its id, hexadecimal
    Column("created_at", Double, nullable=False),
    Column("key_id", String(128)),
    Column("client", String(32), nullable=False),  # "": tools without a known client
    Column("purpose", String(16), nullable=False),  # main | compaction | subagent
    Column("step", Integer, nullable=False),
    Column("loop_step", Integer, nullable=False),
    Column("at", String(16), nullable=False),  # loop, or at which boundary: start | turn | compaction | gap
    Column("tier", Integer, nullable=False),  # that answered
    Column("previous", Integer),  # the tier of the step before
    Column("rule", String(8), nullable=False),  # stay | up | keep | rest | free
    Column("reason", Text, nullable=False),  # of the rule; the decision has its own
    Column("gap_seconds", Double),
    Column("errors", Integer, nullable=False),
    Column("repeats", Integer, nullable=False),
    Column("bad_calls", Integer, nullable=False),
    Column("last_exit", String(8)),  # passed | failed
    Column("prompt_tokens", Integer, nullable=False),
    Column("cached_tokens", Integer, nullable=False),
    Column("written_tokens", Integer, nullable=False),  # into the provider's cache
    Column("completion_tokens", Integer, nullable=False),
    Column("cost_usd", Double, nullable=False),
    Column("strongest_usd", Double, nullable=False),  # on the strongest tier alone, with its caches
    Column("ended", String(8)),  # good | bad: of the work before this step
    Column("end_sign", String(16)),
    Column("end_weight", Double),  # as a label
    Column("trouble", Json),  # classifier.decision.Trouble
    Index(None, "session", "created_at"),
    Index(None, "created_at"),
)

routing_decisions = Table(
    "routing_decisions",
    metadata,
    Column("request_id", ForeignKey("requests.request_id", ondelete="CASCADE"), primary_key=True),
    Column("created_at", Double, nullable=False),
    Column("tier", Integer, nullable=False),  # as decided; requests.tier is the one that answered
    Column("would_be_tier", Integer),  # what routing would have taken, in observe mode
    Column("classifier_version", String(64), nullable=False),
    Column("prediction_kind", String(16), nullable=False),  # measured | prior | heuristic
    Column("novelty", Double, nullable=False),
    Column("decision", PackedText, nullable=False),  # classifier.decision.Decision, with all that it is replayed from
    Column("experiment_id", String(64)),
    Column("arm", String(8)),  # a | b, of that experiment
    Column("unit", FreeText),  # whose requests all have this arm
    Index(
        "ix_routing_decisions_experiment",
        "experiment_id",
        "created_at",
        sqlite_where=text("experiment_id IS NOT NULL"),
        postgresql_where=text("experiment_id IS NOT NULL"),
    ),
    # The newest requests of observe mode.
    Index(
        "ix_routing_decisions_observed",
        "created_at",
        sqlite_where=text("would_be_tier IS NOT NULL"),
        postgresql_where=text("would_be_tier IS NOT NULL"),
    ),
    # Without it each id would be stored twice; the indexes above, which then hold ids, have few rows.
    sqlite_with_rowid=False,
)
