"""Settings of a gateway process: defaults ← environment (`AIO_*`) ← command line, one typed struct."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from classifier.policy.quality_setting import QualitySetting

Role = Literal["all", "gateway"]
WhenAway = Literal["open", "closed"]
SpanExport = Literal["none", "console", "otlp"]
LogLevel = Literal["debug", "info", "warning", "error"]


# Never shown, whatever is wrong with them.
SECRETS = ("api_keys", "admin_keys", "alert_routing_key", "alert_webhook", "error_report_dsn")


class SettingsError(ValueError):
    """A setting has a value that is not allowed; the message names the variable, the value and the rule."""


def data_home(environment: Mapping[str, str]) -> Path:
    """Where state lives by default: `$XDG_DATA_HOME/aio`, else `~/.local/share/aio`."""
    return Path(environment.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "aio"


def cache_home(environment: Mapping[str, str]) -> Path:
    """Where repacked weights live by default: `$XDG_CACHE_HOME/aio`, else `~/.cache/aio`. Safe to delete."""
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aio"


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that is fixed when a process starts. Every field `x` is read from `AIO_X`.

    `gateway_workers`: processes that serve HTTP on the one port; from 2 on every core is a process of its own.
    `api_keys`: comma-separated `NAME=KEY` or `NAME=sha256:HEX` entries; empty means that no key is asked for.
    `admin_keys`: the same, for administration; without any, the first start of a gateway stores one and prints it.
    `keys_poll_seconds`: how often changes of stored keys are looked for, and the database is told what was spent.
    `limits_without_redis`: while Redis is away, every process counts by itself (open), or keys with limits get 503.
    `budgets_without_database`: while the database is away and a slice is used up, go on (open), or answer 503.
    `database_url`: a SQLAlchemy async URL; empty means SQLite (WAL) in `data_dir`.
    `redis_url`: `redis://[:password@]host:port/number`; empty means that this process shares no windows and caches.
    `core_socket`: where `aio serve --role core` listens and `--role gateway` connects; empty means in `data_dir`.
    Cores of GPU groups listen beside it (`gateway.core_factory.socket_of`).
    `cluster`: a Ray cluster that has the cores: `auto`, `HOST:PORT` of its head, or `ray://HOST:PORT`; empty: none.
    `adapter_dir`: the folder that LoRA adapters may be loaded from over HTTP; empty means any that the core can read.
    `quality_target`: share of answers that must be no worse than the strongest tier's, as a number or as `economy`,
    `balanced` or `careful`; None is the artefact's own.
    `sampling_rate`: ceiling of the share of answers of the cheaper half of the tiers that is verified, a fifth of it of
    the dearer half's.
    `verification_budget`: what verification may cost, as a share of the trailing day's serving cost, half of it probes.
    `cold_start_usd`: what it may cost a day beyond that while little is known of the prompts that come; 0: nothing.
    `store_texts`: whether messages and answers are recorded (a request may still opt out with `store: false`).
    `private_keys`: comma-separated names of `api_keys` whose owners' texts are neither stored nor sampled.
    `redaction`: `module:function` or a file of regular expressions, applied to texts before anything stores them.
    `text_days`, `retain_days`, `retain_rows`, `training_days`, `training_rows`: see `quality.privacy.retention`;
    "null": all. `file_limit`, `files_quota`: bytes of an uploaded file, and of all files of a tenant together.
    `file_days`: how long files are kept whose owner said nothing; "null": for ever.
    `batch_concurrency`: lines of batches that this process answers at once; 0 leaves them to `aio worker`.
    `batch_lease_seconds`: after which the lines of a worker that died are another's.
    `request_seconds`: how long a request may take to arrive. `max_connections`: per process, by default as many as its
    open files allow. `body_limit`: bytes. `drain_seconds`: how long a shutdown waits for answers in flight.
    `head_limit`: bytes of a request's line and headers together; the line may take an eighth, one header a quarter.
    `unready_seconds`: how long it goes on serving before that, unready, so that balancers send no more.
    `cors_origins`: comma-separated origins whose pages may use the API. `allowed_hosts`: comma-separated host names by
    which callers without a key may reach this server (`gateway.tenancy.host_names`).
    `max_in_flight`, `max_waiting`: answers at once in this process, and requests that wait behind them, by priority.
    `alert_webhook`: URL that is told of alerts, in PagerDuty's form with `alert_routing_key`; empty: nobody is.
    `log_format`: lines for people, or an object of JSON each. `log_requests`: whether each request gets one.
    `error_report_dsn`: where errors that nobody foresaw are told, as Sentry writes it; empty: the log alone has them.
    `trace_ratio`: share of the traces that begin here and are exported; callers' own decisions are honoured.
    `socket_chats`: most chats at a time on one WebSocket. `keep_alive_seconds`: after so long without a first token a
    stream begins with comments. `stalled_reader_seconds`: who takes nothing for so long is given up.
    `canary_share`: of the requests, decided by a retrained classifier before it serves all; 0 promotes it at once.
    `artefact_poll_seconds`: how often a newly promoted classifier is looked for.
    `classifier_must_be_measured`: refuse classifiers that learned nothing of the catalogue's models.
    """

    role: Role = "all"
    gateway_workers: Annotated[int, Meta(ge=1, le=64)] = 1
    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8080
    catalog: str = "laptop"
    data_dir: str = ""
    cache_dir: str = ""
    database_url: str = ""
    redis_url: str = ""
    core_socket: str = ""
    cluster: str = ""
    adapter_dir: str = ""
    api_keys: str = ""
    admin_keys: str = ""
    keys_poll_seconds: Annotated[float, Meta(gt=0)] = 2.0
    limits_without_redis: WhenAway = "open"
    budgets_without_database: WhenAway = "closed"
    body_limit: Annotated[int, Meta(ge=1024)] = 4 * 1024 * 1024
    head_limit: Annotated[int, Meta(ge=8192, le=1024 * 1024)] = 64 * 1024
    file_limit: Annotated[int, Meta(ge=1024)] = 100 * 1024 * 1024
    files_quota: Annotated[int, Meta(ge=1024)] = 1024 * 1024 * 1024
    file_days: Annotated[float, Meta(gt=0)] | None = 30.0
    batch_concurrency: Annotated[int, Meta(ge=0, le=4096)] = 4
    batch_lease_seconds: Annotated[float, Meta(ge=0.5, le=3600)] = 30.0
    request_seconds: Annotated[float, Meta(gt=0)] = 30.0
    max_connections: Annotated[int, Meta(ge=1)] | None = None
    cors_origins: str = ""
    allowed_hosts: str = ""
    quality_target: QualitySetting | None = None
    sampling_rate: Annotated[float, Meta(ge=0, le=1)] = 0.05
    verification_budget: Annotated[float, Meta(ge=0)] = 0.05
    cold_start_usd: Annotated[float, Meta(ge=0)] = 1.0
    monitor: bool = True
    retrain_cron: str = "0 3 * * 0"
    canary_share: Annotated[float, Meta(ge=0, lt=1)] = 0.1
    store_texts: bool = True
    private_keys: str = ""
    redaction: str = ""
    text_days: Annotated[float, Meta(ge=0)] | None = 30.0
    retain_days: Annotated[float, Meta(ge=0)] | None = 400.0
    retain_rows: Annotated[int, Meta(ge=0)] | None = None
    training_days: Annotated[float, Meta(ge=0)] | None = None
    training_rows: Annotated[int, Meta(ge=0)] | None = None
    drain_seconds: Annotated[int, Meta(ge=0)] = 30
    unready_seconds: Annotated[float, Meta(ge=0)] = 0.0
    max_in_flight: Annotated[int, Meta(ge=1)] = 1000
    max_waiting: Annotated[int, Meta(ge=0)] = 4000
    socket_chats: Annotated[int, Meta(ge=1, le=1024)] = 8
    keep_alive_seconds: Annotated[float, Meta(gt=0)] = 15.0
    stalled_reader_seconds: Annotated[float, Meta(gt=0)] = 60.0
    artefact_poll_seconds: Annotated[float, Meta(gt=0)] = 5.0
    classifier_must_be_measured: bool = False
    hidden_state_seconds: Annotated[float, Meta(gt=0)] = 1.0
    log_level: LogLevel = "info"
    log_format: Literal["text", "json"] = "text"
    log_requests: bool = False
    alert_webhook: str = ""
    alert_routing_key: str = ""
    alert_poll_seconds: Annotated[float, Meta(gt=0)] = 15.0
    error_report_dsn: str = ""
    trace_exporter: SpanExport = "none"
    trace_ratio: Annotated[float, Meta(ge=0, le=1)] = 1.0
    otlp_endpoint: str = "http://127.0.0.1:4318"

    @property
    def data_path(self) -> Path:
        """Folder of the database, the journal, the socket and the classifier registry."""
        return Path(self.data_dir) if self.data_dir else data_home(os.environ)

    @property
    def cache_path(self) -> Path:
        """Folder of the repacked weights."""
        return Path(self.cache_dir) if self.cache_dir else cache_home(os.environ)

    @property
    def database(self) -> str:
        """The SQLAlchemy URL in force."""
        return self.database_url or f"sqlite+aiosqlite:///{self.data_path.absolute() / 'aio.sqlite3'}"

    @property
    def socket_path(self) -> Path:
        """The Unix socket between gateway and core processes."""
        return Path(self.core_socket) if self.core_socket else self.data_path / "core.sock"

    @property
    def traced_share(self) -> float | None:
        """Share of the traces beginning here that are recorded; None where nothing exports any."""
        return None if self.trace_exporter == "none" else self.trace_ratio

    @property
    def knobs_path(self) -> Path:
        """Where changed knobs that shall outlast the core's process are kept."""
        return self.data_path / "knobs.json"

    @property
    def routing_knobs_path(self) -> Path:
        """Where changed knobs of routing are kept, for all gateway processes of this folder."""
        return self.data_path / "routing_knobs.json"

    @property
    def replica_knobs_path(self) -> Path:
        """Where changed knobs of replica sets are kept, for all gateway processes of this folder."""
        return self.data_path / "replica_knobs.json"

    @property
    def batch_knobs_path(self) -> Path:
        """Where changed knobs of batches are kept, for all processes of this folder."""
        return self.data_path / "batch_knobs.json"

    @property
    def cache_knobs_path(self) -> Path:
        """Where changed knobs of the response cache are kept, for all gateway processes of this folder."""
        return self.data_path / "cache_knobs.json"

    @property
    def registry_path(self) -> Path:
        """Where retrained classifiers are kept and promoted."""
        return self.data_path / "classifier"

    @property
    def probes_path(self) -> Path:
        """Where the probes of tiers are kept and promoted."""
        return self.data_path / "probes"

    @property
    def journal_path(self) -> Path:
        """Where ledgers keep what the database does not hold yet; each process claims a folder of its own in it."""
        return self.data_path / "journal"


def load_settings(environment: Mapping[str, str] | None = None, **overrides: Any) -> Settings:
    """Settings from `environment` (default: the process's), then `overrides` that are not None.

    Raises `SettingsError` naming the variable. Keys never appear in a message.
    """
    environment = os.environ if environment is None else environment
    given = {
        name: environment[variable_of(name)] for name in Settings.__struct_fields__ if variable_of(name) in environment
    }
    given |= {name: value for name, value in overrides.items() if value is not None}
    settings = Settings()
    for name, value in given.items():
        settings = _with_field(settings, name, value)
    return settings


def variable_of(field: str) -> str:
    """The environment variable of a settings field."""
    return f"AIO_{field.upper()}"


def _with_field(settings: Settings, name: str, value: object) -> Settings:
    fields = msgspec.to_builtins(settings) | {name: value}
    try:
        return msgspec.convert(fields, Settings, strict=False)
    except msgspec.ValidationError as error:
        shown = "" if name in SECRETS else f" {value!r}"
        raise SettingsError(
            f"{variable_of(name)} (or the option of that name): value{shown} refused: {error}"
        ) from None
