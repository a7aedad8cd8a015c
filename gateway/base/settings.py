"""Settings of a process, in one typed struct with their defaults; `configuration` reads them."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from classifier.complexity.quality_setting import QualitySetting
from gateway.base.derived_settings import DerivedSettings

Role = Literal["all", "gateway"]
WhenAway = Literal["open", "closed"]
RetrainTrigger = Literal["evidence", "share"]
ChatQueueUse = Literal["off", "put", "take"]
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
            description="Number of processes that serve HTTP on the same port. From 2 on, a supervisor starts and "
            "restarts them",
        ),
    ] = 1
    core_process: Annotated[
        bool,
        Meta(
            description="AIO's own models compute in a separate process, which loads while the gateway starts. If "
            "`false`, they compute on a thread of the gateway",
        ),
    ] = True
    host: Annotated[
        str, Meta(description="Addresses and names to listen on, separated by commas. `::` covers IPv4 and IPv6")
    ] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="Port to listen on. With 0, AIO chooses a free one")] = 8080
    insecure: Annotated[
        bool,
        Meta(
            description="Let callers without a key use the gateway even if other machines can reach `AIO_HOST`. "
            "If unset, AIO refuses to start in that case"
        ),
    ] = False
    catalog: Annotated[
        str,
        Meta(
            description="Catalogue: `laptop`, `ladder`, `one-card`, `four-cards`, `datacenter` or a TOML file. If "
            "unset, AIO takes `aio.toml` in this folder, else in `$XDG_CONFIG_HOME/aio` or "
            "~/.config/aio, else `laptop`"
        ),
    ] = "laptop"
    measure_cards: Annotated[
        bool,
        Meta(
            description="Measure cards (`aio bench device`) before AIO serves them for the first time. If "
            "`false`, AIO only says how you can measure them"
        ),
    ] = False
    data_dir: Annotated[
        str,
        Meta(
            description="Data folder: database, journal, classifiers and socket. If empty: `$XDG_DATA_HOME/aio` "
            "or ~/.local/share/aio",
        ),
    ] = ""
    cache_dir: Annotated[
        str,
        Meta(
            description="Folder of repacked weights, which you can delete at any time. If empty: "
            "`$XDG_CACHE_HOME/aio` or ~/.cache/aio"
        ),
    ] = ""
    database_url: Annotated[
        str,
        Meta(
            description="URL such as `postgresql://user:password@host/name?sslmode=require`, with libpq's "
            "parameters. If empty, AIO uses SQLite in the data folder",
        ),
    ] = ""
    redis_url: Annotated[
        str,
        Meta(
            description="`redis://[:password@]host:port/number`. Processes share limits of keys and of sign-ins, "
            "cached answers, conversations and batch leases there. If empty, each process has its "
            "own, and batches are leased in the database",
        ),
    ] = ""
    core_socket: Annotated[
        str,
        Meta(
            description="Socket between core and gateway if you start them separately (`--role`) or start several "
            "workers. The path has at most 107 bytes. If empty: `core.sock` in the data folder. A GPU "
            "group uses `core.NAME.sock`",
        ),
    ] = ""
    cluster: Annotated[
        str,
        Meta(
            description="Ray cluster that runs the cores: `auto`, `HOST:PORT` of its head, or `ray://HOST:PORT`. "
            "If empty, there is none",
        ),
    ] = ""
    core_tls: Annotated[
        str,
        Meta(
            description="Folder with `ca.crt`, `tls.crt` and `tls.key` (see `aio certificates`), which encrypt "
            "TCP connections between gateways and cores. With `off`, the network must do that. If "
            "empty, AIO allows such connections on this machine only",
        ),
    ] = ""
    adapter_dir: Annotated[
        str,
        Meta(
            description="Folder from which LoRA adapters may be loaded over HTTP. If empty, any folder that the "
            "core can read is allowed",
        ),
    ] = ""
    api_keys: Annotated[
        str,
        Meta(
            description="`NAME=KEY` or `NAME=sha256:HEX` (see `aio new-key`), separated by commas or lines. If "
            "empty, callers need no key until you create one",
        ),
    ] = ""
    admin_keys: Annotated[
        str,
        Meta(description="The same for administration. If empty, the first start stores a key and prints it"),
    ] = ""
    viewer_keys: Annotated[
        str,
        Meta(
            description="The same for keys that only read (scope `viewer`), such as Prometheus' key for costs and names"
        ),
    ] = ""
    oidc_issuer: Annotated[
        str,
        Meta(
            description="Issuer URL of the OpenID provider with which users of the dashboard sign in. If empty, "
            "there is none"
        ),
    ] = ""
    oidc_client_id: Annotated[str, Meta(description="The id under which the provider knows AIO")] = ""
    oidc_client_secret: Annotated[
        str, Meta(description="The secret for that id. If empty, AIO is a public client, which PKCE protects")
    ] = ""
    oidc_roles: Annotated[
        str,
        Meta(
            description="`GROUP=ROLE`, separated by commas, with the roles `viewer`, `operator` and `admin`. A "
            "user of several groups gets the highest role. The group `*` means everyone"
        ),
    ] = ""
    oidc_groups_claim: Annotated[str, Meta(description="The claim with the groups of a user")] = "groups"
    oidc_scopes: Annotated[str, Meta(description="Scopes that AIO asks for, separated by spaces")] = (
        "openid profile email"
    )
    oidc_redirect_url: Annotated[
        str,
        Meta(
            description="Where the provider sends users back. If empty: `/admin/oidc/callback` at the host that "
            "they used"
        ),
    ] = ""
    keys_file: Annotated[
        str,
        Meta(
            description="TOML file of teams, keys and budgets that every start applies, as `aio keys apply` does. "
            "If empty, there is none",
        ),
    ] = ""
    keys_poll_seconds: Annotated[
        float,
        Meta(
            gt=0,
            description="Seconds between two looks for changed keys. AIO writes the spending of budgets to the "
            "database in the same interval",
        ),
    ] = 2.0
    limits_without_redis: Annotated[
        WhenAway,
        Meta(
            description="What happens while Redis is down: with `open`, each process counts by itself; with "
            "`closed`, keys with limits get 503",
        ),
    ] = "open"
    budgets_without_database: Annotated[
        WhenAway,
        Meta(
            description="What happens if a leased budget is used up while the database is down: with `closed`, "
            "callers get 503; with `open`, AIO answers and charges later",
        ),
    ] = "closed"
    strict_fields: Annotated[
        bool,
        Meta(
            description="Refuse requests with unknown fields, for every key. If unset, AIO ignores these fields "
            "and names them in a header"
        ),
    ] = False
    body_limit: Annotated[int, Meta(ge=1024, description="Maximum bytes of a request body. A longer one gets 413")] = (
        32 * 1024 * 1024
    )
    head_limit: Annotated[
        int,
        Meta(
            ge=8192,
            le=1024 * 1024,
            description="Maximum bytes of the request line and headers together. The request line may use an "
            "eighth of it (else 414), one header a quarter (else 431)",
        ),
    ] = 64 * 1024
    file_limit: Annotated[int, Meta(ge=1024, description="Maximum bytes of an uploaded file")] = 100 * 1024 * 1024
    files_quota: Annotated[int, Meta(ge=1024, description="Maximum bytes of all files of a tenant")] = (
        1024 * 1024 * 1024
    )
    file_days: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(
            description="Days until AIO deletes a file that has no expiry of its own. With `null`, AIO never deletes it"
        ),
    ] = 30.0
    batch_concurrency: Annotated[
        int,
        Meta(
            ge=0,
            le=4096,
            description="Number of batch lines that this process answers at once. 0 leaves them to `aio worker`",
        ),
    ] = 4
    batch_lease_seconds: Annotated[
        float,
        Meta(
            ge=0.5,
            le=3600,
            description="Seconds after which another worker takes over the batch lines of a worker that died",
        ),
    ] = 30.0
    chat_queue: Annotated[
        ChatQueueUse,
        Meta(
            description="Chats through a durable queue in Redis. With `put`, this process has no models and puts every "
            "chat into the queue. With `take`, it answers chats of the queue, as `aio worker` does unless this is `off`"
        ),
    ] = "off"
    chat_queue_concurrency: Annotated[
        int, Meta(ge=1, le=4096, description="Number of queued chats that a process answers at once")
    ] = 64
    chat_queue_waiting: Annotated[
        int,
        Meta(
            ge=1,
            description="Maximum number of chats of one tier and priority that wait in the queue. Further ones get 503",
        ),
    ] = 1000
    chat_queue_lease_seconds: Annotated[
        float,
        Meta(
            ge=0.5, le=3600, description="Seconds after which another worker takes over the chats of a worker that died"
        ),
    ] = 5.0
    request_seconds: Annotated[
        float,
        Meta(
            gt=0,
            description="Seconds within which a request must arrive, else it gets 408. A request that sends 64 "
            "KiB/s or more has longer",
        ),
    ] = 30.0
    max_connections: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(
            description="Maximum connections of this process. Further ones get 503. If unset, as many as the "
            "limit of open files allows"
        ),
    ] = None
    cors_origins: Annotated[
        str,
        Meta(description="Origins whose web pages may use the API, separated by commas. `*` allows every page"),
    ] = ""
    allowed_hosts: Annotated[
        str,
        Meta(
            description="Further host names that callers without a key may use, besides this machine's own, "
            "separated by commas: `NAME`, `*.NAME`, or `*` for any",
        ),
    ] = ""
    trusted_proxies: Annotated[
        str,
        Meta(
            description="Addresses, networks and host names of the reverse proxies that AIO trusts, separated by "
            "commas. AIO believes their `X-Forwarded-For`, `-Proto` and `-Prefix` and `Forwarded`. If "
            "empty, it trusts none",
        ),
    ] = ""
    root_path: Annotated[
        str,
        Meta(
            description="Path below which a reverse proxy serves AIO, such as `/ai`. AIO uses it in links, "
            "redirects and cookies. If empty, AIO takes `X-Forwarded-Prefix` of a trusted proxy, else "
            "none",
        ),
    ] = ""
    quality_target: Annotated[
        QualitySetting | None,
        Meta(
            description="How much you pay for quality: `economy` (0.5), `balanced` (0.7), `careful` (0.9) or a "
            "number from 0 to 1. If unset, AIO takes the classifier's own target",
        ),
    ] = None
    sampling_rate: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Maximum share of answers, from 0 to 1, that AIO verifies in the cheaper half of the "
            "tiers. The other half gets a fifth of it",
        ),
    ] = 0.05
    verification_budget: Annotated[
        float,
        Meta(
            ge=0,
            description="Maximum cost of verification, as a share of the last day's serving cost. If a fifth of "
            "the saving is more, that is the maximum",
        ),
    ] = 0.05
    verification_most_usd: Annotated[
        float,
        Meta(ge=0, description="Maximum cost of verification per day in US dollars"),
    ] = 20.0
    second_opinions: Annotated[
        int,
        Meta(
            ge=0,
            le=2,
            description="Number of further answers, 0 to 2, that may contradict before a verified answer counts "
            "as worse: first a second answer of the strongest tier, then one of another tier. The "
            "verification budget pays for them. With 0, the first answer decides",
        ),
    ] = 2
    keys_are_tenants: Annotated[
        bool,
        Meta(
            description="Each key without a team is a tenant of its own, and the labels of one such key change at "
            "most one in six decisions of another. If `false`, this holds only once a key has a team. "
            "Until then all keys are one tenant, and a key with wrong prompts changes the routing of "
            "all"
        ),
    ] = False
    cold_start_usd: Annotated[
        float,
        Meta(
            ge=0,
            description="US dollars per day that verification may cost beyond its budget while few similar "
            "prompts have labels. Each team, and each key without a team, may use a quarter of it "
            "once. Where all models run in AIO, verification uses idle time instead. 0 allows nothing",
        ),
    ] = 1.0
    monitor: Annotated[bool, Meta(description="Run the quality loop: sample, verify and retrain")] = True
    retrain_cron: Annotated[
        str,
        Meta(
            description="When AIO retrains the classifier, as a cron expression. With `never`, or if empty, it "
            "never does"
        ),
    ] = "0 3 * * 0"
    retrain_trigger: Annotated[
        RetrainTrigger,
        Meta(
            description="What else starts a retraining: `evidence`, a sequential test; or `share`, if more than "
            "15% of the last 100 verified answers were worse"
        ),
    ] = "evidence"
    canary_share: Annotated[
        float,
        Meta(
            ge=0,
            lt=1,
            description="Share of requests that a retrained classifier routes before AIO promotes it. 0 promotes "
            "it at once",
        ),
    ] = 0.1
    canary_days: Annotated[
        float,
        Meta(
            gt=0, description="Days after which a trial with too little evidence ends. The previous version then stays"
        ),
    ] = 28.0
    store_texts: Annotated[
        bool,
        Meta(description="Store messages and answers. A request may opt out with `store: false`"),
    ] = True
    cache_over_restarts: Annotated[
        bool,
        Meta(
            description="Write cached answers to the data folder when the process stops, so that the next process "
            "has them until they expire. AIO never does this with `AIO_REDACTION` or "
            "`AIO_TEXT_DAYS=0`"
        ),
    ] = True
    private_keys: Annotated[
        str,
        Meta(description="Names from `AIO_API_KEYS`, separated by commas, whose texts AIO neither stores nor samples"),
    ] = ""
    redaction: Annotated[
        str,
        Meta(
            description="`module:function`, or a file of regular expressions, that AIO applies to texts before it "
            "stores them"
        ),
    ] = ""
    text_days: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        Meta(description="Days for which AIO keeps texts. With `null`, it keeps them for ever"),
    ] = 30.0
    retain_days: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        Meta(description="Days for which AIO keeps requests and verifications. With `null`, it keeps them for ever"),
    ] = 400.0
    retain_rows: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="Maximum number of requests that AIO keeps. With `null`, it keeps all"),
    ] = None
    retain_gigabytes: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        Meta(
            description="Maximum size of SQLite's file in gigabytes. Beyond it AIO deletes the oldest requests, "
            "those without labels first. With `null`, there is no limit"
        ),
    ] = 50.0
    training_days: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        Meta(description="Days for which AIO keeps embeddings with labels. With `null`, it keeps them for ever"),
    ] = None
    training_rows: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="Maximum number of embeddings with labels that AIO keeps. With `null`, it keeps all"),
    ] = None
    drain_seconds: Annotated[int, Meta(ge=0, description="Seconds for which a shutdown waits for running answers")] = 30
    unready_seconds: Annotated[
        float,
        Meta(
            ge=0,
            description="Seconds for which a shutdown first goes on serving while `/health/ready` says 503, so "
            "that load balancers notice",
        ),
    ] = 0.0
    max_in_flight: Annotated[
        int, Meta(ge=1, description="Maximum number of requests that this process answers at once")
    ] = 1000
    max_waiting: Annotated[
        int, Meta(ge=0, description="Maximum number of requests that wait behind them, ordered by priority")
    ] = 4000
    socket_chats: Annotated[
        int, Meta(ge=1, le=1024, description="Maximum number of concurrent chats of one WebSocket")
    ] = 8
    keep_alive_seconds: Annotated[
        float,
        Meta(
            gt=0,
            description="Seconds of silence after which a stream sends a comment (a ping on /v1/messages), so "
            "that the connection stays open. This applies before the first token and between tokens",
        ),
    ] = 15.0
    stalled_reader_seconds: Annotated[
        float,
        Meta(gt=0, description="Seconds after which AIO disconnects a client that reads nothing of its stream"),
    ] = 60.0
    measure_models: Annotated[
        bool,
        Meta(
            description="Measure, once and in the background, a model that others quantised and that has no "
            "quality report. A niced process does this on one CPU"
        ),
    ] = True
    artefact_poll_seconds: Annotated[
        float,
        Meta(
            gt=0,
            description="Seconds between two looks for changes by other processes: classifiers, evidence models, "
            "labels, trials, experiments, and the knobs of routing, cache, replicas and batches",
        ),
    ] = 5.0
    classifier_must_be_measured: Annotated[
        bool,
        Meta(description="Refuse classifiers that were not trained on the catalogue's models"),
    ] = False
    classifier_encoder: Annotated[
        str,
        Meta(
            description="Folder of a fine-tuned encoder that classifies prompts, or the hash of one in "
            "`encoders/` of the classifier registry. If empty, or if it cannot serve, AIO uses the "
            "n-gram model"
        ),
    ] = ""
    hidden_state_seconds: Annotated[
        float,
        Meta(
            gt=0, description="Maximum seconds for which a request waits for the hidden state that its classifier reads"
        ),
    ] = 1.0
    log_level: Annotated[
        LogLevel, Meta(description="The least severe log lines that AIO writes: `debug`, `info`, `warning` or `error`")
    ] = "info"
    log_format: Annotated[
        Literal["text", "json"],
        Meta(description="`text` for people, or `json` for one object per line"),
    ] = "text"
    log_requests: Annotated[bool, Meta(description="Log one line per request")] = False
    price_list_seconds: Annotated[
        float,
        Meta(ge=1, description="Seconds between two updates of prices from the price list, which is `genai-prices`"),
    ] = 3600.0
    alert_urls: Annotated[
        str,
        Meta(
            description="Services that get alerts, separated by spaces: webhooks of Slack or Teams, "
            "`mailtos://USER:PASSWORD@HOST:587?from=ADDRESS&to=ADDRESS`, "
            "`pagerduty://INTEGRATION_KEY@API_KEY`, and other addresses of Apprise. If empty, alerts "
            "go nowhere"
        ),
    ] = ""
    alert_poll_seconds: Annotated[float, Meta(gt=0, description="Seconds between two evaluations of the alerts")] = 15.0
    gpu_exporters: Annotated[
        str,
        Meta(
            description="Pages of NVIDIA's exporters (dcgm-exporter), separated by commas, such as "
            "http://node-1:9400/metrics. AIO watches their GPUs too"
        ),
    ] = ""
    trace_exporter: Annotated[
        SpanExport,
        Meta(description="Where OpenTelemetry spans go: `none`, `console` or `otlp`"),
    ] = "none"
    trace_ratio: Annotated[
        float,
        Meta(ge=0, le=1, description="Share of new traces that AIO exports"),
    ] = 1.0
    trace_parent_based: Annotated[
        bool,
        Meta(
            description="Follow the caller's own sampling decision. If `false`, the share applies to the caller's "
            "traces too"
        ),
    ] = True
    trace_content: Annotated[
        TraceContent,
        Meta(
            description="Which conventions spans use for the texts of requests: OpenTelemetry's (`gen_ai`), "
            "`openinference` or `both`; `none` leaves the texts out. Spans never have texts of keys "
            "that did not consent to storing them",
        ),
    ] = "none"
    trace_content_chars: Annotated[
        int,
        Meta(ge=64, le=262_144, description="Maximum characters of a prompt, and of an answer, in a span"),
    ] = 16_384
    otlp_endpoint: Annotated[
        str, Meta(description="OTLP collector of the traces. AIO posts them to `/v1/traces` there")
    ] = "http://127.0.0.1:4318"
    otlp_traces_endpoint: Annotated[
        str, Meta(description="The full URL that AIO posts traces to. If empty, the collector's URL applies")
    ] = ""
