"""Settings of a process, in one typed struct with their defaults; `configuration` reads them."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from classifier.complexity.quality_setting import QualitySetting
from gateway.base.derived_settings import DerivedSettings

Role = Literal["all", "gateway"]
WhenAway = Literal["open", "closed"]
RetrainTrigger = Literal["evidence", "share"]
SpanExport = Literal["none", "console", "otlp"]
TraceContent = Literal["none", "gen_ai", "openinference", "both"]
LogLevel = Literal["debug", "info", "warning", "error"]


class SettingsError(ValueError):
    """A setting has a value that is not allowed; the message names the variable, the value and the rule."""


class Settings(DerivedSettings, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that is fixed when a process starts. Field `x` is read from the environment variable `AIO_X`.

    The descriptions are the texts of `aio serve --help`, of `aio settings` and of docs/reference/settings.md.
    """

    role: Annotated[
        Role,
        Meta(description="Part of AIO that this process runs: `all`, or `gateway` for HTTP without models"),
    ] = "all"
    gateway_workers: Annotated[
        int,
        Meta(
            ge=1,
            le=64,
            description="Processes that serve HTTP on the same port; from 2 on, a supervisor keeps them",
        ),
    ] = 1
    core_process: Annotated[
        bool,
        Meta(
            description="Own models compute in a process of their own, which loads while the gateway does; `false`: "
            "on a thread of the gateway",
        ),
    ] = True
    host: Annotated[str, Meta(description="Addresses and names to listen on, by commas; `::` takes IPv4 and IPv6")] = (
        "127.0.0.1"
    )
    port: Annotated[int, Meta(ge=0, le=65535, description="Port to listen on; 0 takes a free one")] = 8080
    insecure: Annotated[
        bool,
        Meta(
            description="Serve callers without a key where other machines reach `AIO_HOST`; unset: that start is "
            "refused"
        ),
    ] = False
    catalog: Annotated[
        str,
        Meta(
            description="Catalogue: `laptop`, `ladder`, `one-card`, `four-cards`, `datacenter` or a TOML file; unset: "
            "`aio.toml` in this folder, else in `$XDG_CONFIG_HOME/aio` or ~/.config/aio, else `laptop`"
        ),
    ] = "laptop"
    measure_cards: Annotated[
        bool,
        Meta(description="Measure cards (`aio bench device`) before they are first served; `false`: say how"),
    ] = False
    data_dir: Annotated[
        str,
        Meta(
            description="State folder: database, journal, classifiers, socket; empty: `$XDG_DATA_HOME/aio` or "
            "~/.local/share/aio",
        ),
    ] = ""
    cache_dir: Annotated[
        str,
        Meta(description="Folder of repacked weights, safe to delete; empty: `$XDG_CACHE_HOME/aio` or ~/.cache/aio"),
    ] = ""
    database_url: Annotated[
        str,
        Meta(
            description="URL such as `postgresql://user:password@host/name?sslmode=require`, with libpq's parameters; "
            "empty: SQLite in the state folder",
        ),
    ] = ""
    redis_url: Annotated[
        str,
        Meta(
            description="`redis://[:password@]host:port/number`, to share limits of keys and of sign-ins, cached "
            "answers, conversations and batch leases; empty: each process has its own, and batches are leased in the "
            "database",
        ),
    ] = ""
    core_socket: Annotated[
        str,
        Meta(
            description="Socket between core and gateway where they are started apart (`--role`) or with several "
            "workers, a path of at most 107 bytes; empty: `core.sock` in the state folder; a GPU group uses "
            "`core.NAME.sock`",
        ),
    ] = ""
    cluster: Annotated[
        str,
        Meta(
            description="Ray cluster that runs the cores: `auto`, `HOST:PORT` of its head, or `ray://HOST:PORT`; "
            "empty: none",
        ),
    ] = ""
    core_tls: Annotated[
        str,
        Meta(
            description="Folder with `ca.crt`, `tls.crt` and `tls.key` (see `aio certificates`) that encrypt TCP "
            "connections between gateways and cores; `off`: the network does; empty: on this machine only",
        ),
    ] = ""
    adapter_dir: Annotated[
        str,
        Meta(
            description="Folder from which LoRA adapters may be loaded over HTTP; empty: any folder that the core "
            "can read",
        ),
    ] = ""
    api_keys: Annotated[
        str,
        Meta(
            description="`NAME=KEY` or `NAME=sha256:HEX` (see `aio new-key`), separated by commas or lines; empty: no "
            "key is required",
        ),
    ] = ""
    admin_keys: Annotated[
        str,
        Meta(description="The same for administration; empty: the first start stores a key and prints it"),
    ] = ""
    viewer_keys: Annotated[
        str,
        Meta(description="The same for looking on: scope `viewer`, such as Prometheus' key for costs and names"),
    ] = ""
    oidc_issuer: Annotated[
        str,
        Meta(description="Issuer URL of the OpenID provider where users of the dashboard sign in; empty: none"),
    ] = ""
    oidc_client_id: Annotated[str, Meta(description="The id under which the provider knows AIO")] = ""
    oidc_client_secret: Annotated[str, Meta(description="Its secret; empty: a public client, which PKCE protects")] = ""
    oidc_roles: Annotated[
        str,
        Meta(
            description="Comma-separated `GROUP=ROLE`, roles `viewer`, `operator` and `admin`; the highest one holds; "
            "the group `*` is everyone"
        ),
    ] = ""
    oidc_groups_claim: Annotated[str, Meta(description="The claim with the groups of a user")] = "groups"
    oidc_scopes: Annotated[str, Meta(description="Scopes that are asked for, with spaces")] = "openid profile email"
    oidc_redirect_url: Annotated[
        str,
        Meta(description="Where the provider sends users back; empty: `/admin/oidc/callback` at the host they used"),
    ] = ""
    keys_file: Annotated[
        str,
        Meta(
            description="TOML file of teams, keys and budgets that each start makes so, as `aio keys apply` does; "
            "empty: none",
        ),
    ] = ""
    keys_poll_seconds: Annotated[
        float,
        Meta(
            gt=0,
            description="Interval of reading changes of stored keys and of writing budget spending to the database",
        ),
    ] = 2.0
    limits_without_redis: Annotated[
        WhenAway,
        Meta(
            description="While Redis is down: each process counts by itself (`open`), or keys with limits get 503 "
            "(`closed`)",
        ),
    ] = "open"
    budgets_without_database: Annotated[
        WhenAway,
        Meta(
            description="While the database is down and a leased budget is spent: 503 (`closed`), or serve and "
            "charge later (`open`)",
        ),
    ] = "closed"
    strict_fields: Annotated[
        bool, Meta(description="Refuse unknown fields of requests, of every key; unset: ignore them, with a header")
    ] = False
    body_limit: Annotated[int, Meta(ge=1024, description="Most bytes of a request body; above: 413")] = 32 * 1024 * 1024
    head_limit: Annotated[
        int,
        Meta(
            ge=8192,
            le=1024 * 1024,
            description="Most bytes of request line and headers; the line may use an eighth (414), one header a "
            "quarter (431)",
        ),
    ] = 64 * 1024
    file_limit: Annotated[int, Meta(ge=1024, description="Most bytes of an uploaded file")] = 100 * 1024 * 1024
    files_quota: Annotated[int, Meta(ge=1024, description="Most bytes of all files of a tenant")] = 1024 * 1024 * 1024
    file_days: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="Days until a file without an expiry of its own is deleted; `null`: never"),
    ] = 30.0
    batch_concurrency: Annotated[
        int,
        Meta(ge=0, le=4096, description="Batch lines that this process answers at once; 0 leaves them to `aio worker`"),
    ] = 4
    batch_lease_seconds: Annotated[
        float,
        Meta(
            ge=0.5,
            le=3600,
            description="Seconds after which another worker takes over the batch lines of a dead worker",
        ),
    ] = 30.0
    request_seconds: Annotated[
        float,
        Meta(
            gt=0,
            description="Seconds in which a request must arrive, longer while it sends 64 KiB/s or more; then 408",
        ),
    ] = 30.0
    max_connections: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Most connections of this process; above: 503; unset: as many as open files allow"),
    ] = None
    cors_origins: Annotated[
        str,
        Meta(description="Comma-separated origins whose web pages may use the API; `*`: every page"),
    ] = ""
    allowed_hosts: Annotated[
        str,
        Meta(
            description="Comma-separated host names for callers without a key, besides this machine's: `NAME`, "
            "`*.NAME` or `*` for any",
        ),
    ] = ""
    trusted_proxies: Annotated[
        str,
        Meta(
            description="Comma-separated addresses, networks and host names of reverse proxies whose "
            "`X-Forwarded-For`, `-Proto` and `-Prefix` and `Forwarded` are believed; empty: none",
        ),
    ] = ""
    root_path: Annotated[
        str,
        Meta(
            description="Path below which a reverse proxy serves AIO, such as `/ai`, for links, redirects and cookies; "
            "empty: that of `X-Forwarded-Prefix` of trusted proxies, else none",
        ),
    ] = ""
    quality_target: Annotated[
        QualitySetting | None,
        Meta(
            description="1 less what a strongest answer is worth: `economy` (0.5), `balanced` (0.7), `careful` (0.9) "
            "or 0 to 1; unset: the classifier's own",
        ),
    ] = None
    sampling_rate: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Most of the cheaper half of the tiers' answers that is verified, 0 to 1; a fifth of it "
            "for the other half",
        ),
    ] = 0.05
    verification_budget: Annotated[
        float,
        Meta(
            ge=0,
            description="Most that verification may cost, as a share of the last day's serving cost, or a fifth of the "
            "saving if more",
        ),
    ] = 0.05
    verification_most_usd: Annotated[
        float,
        Meta(ge=0, description="US dollars a day that verification never exceeds"),
    ] = 20.0
    second_opinions: Annotated[
        int,
        Meta(
            ge=0,
            le=2,
            description="Further answers, 0 to 2, that may contradict before a verified answer counts as worse: a "
            "second one of the strongest tier, then one of another; the budget pays them; 0: the first decides",
        ),
    ] = 2
    keys_are_tenants: Annotated[
        bool,
        Meta(
            description="Keys without a team are tenants of their own: what the labels of one teach moves at most one "
            "decision in six of another. If false, that holds only once a key has a team; until then all keys are one "
            "tenant, and a key with wrong prompts moves the routing of all"
        ),
    ] = False
    cold_start_usd: Annotated[
        float,
        Meta(
            ge=0,
            description="US dollars a day that verification may cost beyond its budget while few similar prompts "
            "are labelled, a quarter of it once for each team or lone key, idle time instead where all models run in "
            "AIO; 0: nothing",
        ),
    ] = 1.0
    monitor: Annotated[bool, Meta(description="Run the quality loop: sample, verify and retrain")] = True
    retrain_cron: Annotated[
        str,
        Meta(description="When the classifier is retrained, as a cron expression; `never` or empty: never"),
    ] = "0 3 * * 0"
    retrain_trigger: Annotated[
        RetrainTrigger,
        Meta(
            description="What else starts a retraining: `evidence`, the sequential test; `share`, over 15% of the last "
            "100 verified answers were worse"
        ),
    ] = "evidence"
    canary_share: Annotated[
        float,
        Meta(
            ge=0,
            lt=1,
            description="Share of requests that a retrained classifier routes before it is promoted; 0 promotes it "
            "at once",
        ),
    ] = 0.1
    canary_days: Annotated[
        float,
        Meta(gt=0, description="Days after which a trial with too little evidence ends; the version before it stays"),
    ] = 28.0
    store_texts: Annotated[
        bool,
        Meta(description="Record messages and answers; a request may opt out with `store: false`"),
    ] = True
    cache_over_restarts: Annotated[
        bool,
        Meta(
            description="Write cached answers to the state folder when the process stops, so that the next one has "
            "them for the rest of their time; never with `AIO_REDACTION` or `AIO_TEXT_DAYS=0`"
        ),
    ] = True
    private_keys: Annotated[
        str,
        Meta(description="Comma-separated names of `AIO_API_KEYS` whose texts are neither stored nor sampled"),
    ] = ""
    redaction: Annotated[
        str,
        Meta(description="`module:function` or a file of regular expressions, applied to texts before they are stored"),
    ] = ""
    text_days: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        Meta(description="Days that texts are kept; `null`: for ever"),
    ] = 30.0
    retain_days: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        Meta(description="Days that requests and verifications are kept; `null`: for ever"),
    ] = 400.0
    retain_rows: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="Most requests that are kept; `null`: all"),
    ] = None
    retain_gigabytes: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        Meta(
            description="Gigabytes of SQLite's file beyond which the oldest requests are deleted, those without labels "
            "first; `null`: no limit"
        ),
    ] = 50.0
    training_days: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        Meta(description="Days that embeddings with labels are kept; `null`: for ever"),
    ] = None
    training_rows: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="Most embeddings with labels that are kept; `null`: all"),
    ] = None
    drain_seconds: Annotated[int, Meta(ge=0, description="Seconds that a shutdown waits for running answers")] = 30
    unready_seconds: Annotated[
        float,
        Meta(
            ge=0,
            description="Seconds that a shutdown first goes on serving with `/health/ready` at 503, for load balancers",
        ),
    ] = 0.0
    max_in_flight: Annotated[int, Meta(ge=1, description="Most requests answered at once by this process")] = 1000
    max_waiting: Annotated[int, Meta(ge=0, description="Most requests that wait behind them, by priority")] = 4000
    socket_chats: Annotated[int, Meta(ge=1, le=1024, description="Most concurrent chats of one WebSocket")] = 8
    keep_alive_seconds: Annotated[
        float,
        Meta(
            gt=0,
            description="Seconds of silence after which a stream sends a comment (a ping on /v1/messages) that keeps "
            "the connection open, before its first token and between tokens",
        ),
    ] = 15.0
    stalled_reader_seconds: Annotated[
        float,
        Meta(gt=0, description="Seconds after which a client that reads nothing of its stream is disconnected"),
    ] = 60.0
    measure_models: Annotated[
        bool,
        Meta(
            description="Whether a model that others quantised, and that no quality report is of, is measured once in "
            "the background, by a niced process on one CPU"
        ),
    ] = True
    artefact_poll_seconds: Annotated[
        float,
        Meta(
            gt=0,
            description="Seconds between two looks at what other processes changed: classifiers, models of evidence, "
            "labels, trials and experiments, and the knobs of routing, cache, replicas and batches",
        ),
    ] = 5.0
    classifier_must_be_measured: Annotated[
        bool,
        Meta(description="Refuse classifiers that were not trained on the catalogue's models"),
    ] = False
    classifier_encoder: Annotated[
        str,
        Meta(
            description="Folder of a fine-tuned encoder that classifies prompts, or the hash of one in `encoders/` of "
            "the classifier registry; empty, or where it cannot serve: the n-gram model"
        ),
    ] = ""
    hidden_state_seconds: Annotated[
        float,
        Meta(gt=0, description="Most seconds that a request waits for the hidden state that its classifier reads"),
    ] = 1.0
    log_level: Annotated[
        LogLevel, Meta(description="Least severe log lines that are written: `debug`, `info`, `warning` or `error`")
    ] = "info"
    log_format: Annotated[
        Literal["text", "json"],
        Meta(description="`text` for people, or `json` for one object per line"),
    ] = "text"
    log_requests: Annotated[bool, Meta(description="Log a line per request")] = False
    price_list_seconds: Annotated[
        float,
        Meta(ge=1, description="Interval of applying the listed prices of that moment; the list is `genai-prices`"),
    ] = 3600.0
    alert_urls: Annotated[
        str,
        Meta(
            description="Services that get alerts, by spaces: webhooks of Slack or Teams, "
            "`mailtos://USER:PASSWORD@HOST:587?from=ADDRESS&to=ADDRESS`, `pagerduty://INTEGRATION_KEY@API_KEY`, other "
            "addresses of Apprise; empty: none"
        ),
    ] = ""
    alert_poll_seconds: Annotated[float, Meta(gt=0, description="Interval of evaluating the alerts")] = 15.0
    gpu_exporters: Annotated[
        str,
        Meta(
            description="Pages of NVIDIA's exporters (dcgm-exporter), by commas, whose GPUs are watched too, such as "
            "http://node-1:9400/metrics"
        ),
    ] = ""
    trace_exporter: Annotated[
        SpanExport,
        Meta(description="Where OpenTelemetry spans go: `none`, `console` or `otlp`"),
    ] = "none"
    trace_ratio: Annotated[
        float,
        Meta(ge=0, le=1, description="Share of new traces that is exported"),
    ] = 1.0
    trace_parent_based: Annotated[
        bool, Meta(description="Keep a caller's own sampling decision; otherwise the share holds for its traces, too")
    ] = True
    trace_content: Annotated[
        TraceContent,
        Meta(
            description="Texts of requests in spans, by OpenTelemetry's conventions (`gen_ai`), `openinference` or "
            "`both`; never those of keys without consent to storing them",
        ),
    ] = "none"
    trace_content_chars: Annotated[
        int,
        Meta(ge=64, le=262_144, description="Most characters of a prompt, and of an answer, in a span"),
    ] = 16_384
    otlp_endpoint: Annotated[
        str, Meta(description="OTLP collector of the traces, which are posted to `/v1/traces` there")
    ] = "http://127.0.0.1:4318"
    otlp_traces_endpoint: Annotated[
        str, Meta(description="The whole URL that traces are posted to; empty: that of the collector")
    ] = ""
