"""Tables of callers and users: teams, keys, sign-ins and budgets."""

from sqlalchemy import BigInteger, Boolean, Column, Double, ForeignKey, Index, Integer, String, Table, false

from migrations.tables.columns import Json, RowId, metadata

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
    Column("older_secrets", Json),  # those before that one and still valid: list of prefix, digest, until; NULL: none
    Column("scopes", Json, nullable=False),  # list of gateway.base.inference_request.Scope
    Column("tiers", Json),  # list of the allowed tier numbers; NULL: all
    Column("models", Json),  # list of the allowed model names; NULL: all
    Column("consent", Boolean, nullable=False),  # texts may be stored, sampled and learned from
    Column("local_only", Boolean, nullable=False, server_default=false()),  # only tiers labelled local see its requests
    Column("priority_ceiling", Integer, nullable=False),
    Column("requests_per_minute", Integer),
    Column("tokens_per_minute", Integer),
    Column("concurrency", Integer),
    Column("quality", Json),  # a target from 0 to 1, or the name of one; NULL: the server's
    Column("min_tier", Integer),  # the minimum tier; NULL: any
    Column("max_cost_usd_per_request", Double),  # the most that a request may be predicted to cost; NULL: any
    Column("strict", Boolean, nullable=False, server_default=false()),  # unknown fields of its requests are refused
    Column("aliases", Json),  # its own names of models: name → model; NULL: none
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
    Column("rotated_at", Double),
    Column("paused_at", Double),  # since when it is refused until it is resumed; NULL: it is not paused
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
    Column("password", String(256), nullable=False),  # Argon2id in the PHC format
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
