"""Items of the deployment checklist: about keys, passwords, files and stored texts, and about who reaches what, over
which connections.
"""

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec
from sqlalchemy import make_url

from gateway.base.settings import Settings, SettingsError
from gateway.base.stores.data_folder import KEYS_REQUIRED
from gateway.edge.proxies import TrustedProxies, is_loopback_host, is_reachable_from_elsewhere
from gateway.operations.security.stored_keys import StoredKeys, stored_keys
from tiers.catalog.catalog import Catalog
from tiers.catalog.load import load_catalog
from tiers.server_words import is_metadata_host

Status = Literal["ok", "warning", "failed"]


class Facts(NamedTuple):
    """The configuration, and what the machine says about it. `stored` is None while the database cannot be read; `now`
    in epoch seconds; `user`: the id that runs this."""

    settings: Settings
    catalog: Catalog
    stored: StoredKeys | None
    now: float
    user: int

    @property
    def is_reachable(self) -> bool:
        """Whether other machines reach the gateway's address."""
        return is_reachable_from_elsewhere(self.settings.host)

    @property
    def needs_keys(self) -> bool:
        """Whether callers need a key for answers; unread stored keys count as none."""
        needed_before = (self.settings.data_path / KEYS_REQUIRED).exists()
        return bool(self.settings.api_keys) or needed_before or (self.stored is not None and self.stored.for_answers)


class Finding(NamedTuple):
    """`says`: one sentence; `mend`: the setting that mends it."""

    status: Status
    says: str
    mend: str = ""


def ok(says: str) -> Finding:
    return Finding("ok", says)


def warning(says: str, mend: str) -> Finding:
    """Right in some deployments; the operator has to know."""
    return Finding("warning", says, mend)


def failed(says: str, mend: str) -> Finding:
    """Wrong in every deployment that this configuration can be meant for."""
    return Finding("failed", says, mend)


def host_of(url: str) -> str:
    """Return the host of a URL, never its credentials; "" without one."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def is_plain_and_remote(url: str) -> bool:
    """Return whether a URL sends what it carries unencrypted to another machine."""
    host = host_of(url)
    return url.lower().startswith("http://") and host != "" and not is_loopback_host(host)


def open_mode(path: Path, mask: int) -> int | None:
    """Return the mode of a path that has bits of `mask` for others, and None for one that they cannot use.

    In a folder with the sticky bit only owners replace files; what is mounted read-only cannot be changed.
    """
    mode = path.stat().st_mode
    if mask & 0o055 == 0 and (mode & stat.S_ISVTX or os.statvfs(path).f_flag & os.ST_RDONLY):
        return None
    return stat.S_IMODE(mode) if stat.S_IMODE(mode) & mask else None


MOST_ADMINS = 10
OLD_DAYS = 365
MIN_PASSWORD = 12
# Passwords of examples and of servers' defaults.
_KNOWN_PASSWORDS = frozenset(
    {"postgres", "password", "admin", "secret", "changeme", "example", "redis", "aio", "default"}
)


def admin_keys(facts: Facts) -> Finding:
    """Few, known and renewed."""
    configured = [entry for entry in facts.settings.admin_keys.split(",") if entry.strip()]
    if facts.stored is None:
        return failed("the database with its admin keys cannot be read", "see AIO_DATABASE_URL")
    valid = [key for key in facts.stored.admins if key.expires is None or key.expires > facts.now]
    if not configured and not valid:
        return warning(
            "the first start prints an admin key on standard output, which container platforms keep as a log",
            "AIO_ADMIN_KEYS, as `aio new-key NAME` prints it",
        )
    old = [key.name for key in valid if key.expires is None and facts.now - key.made > OLD_DAYS * 86400]
    if old:
        return warning(
            f"valid for ever and more than {OLD_DAYS} days old: {', '.join(old[:5])}",
            "`aio keys rotate NAME`, or an expiry by `aio keys limit`",
        )
    if (count := len(configured) + len(valid)) > MOST_ADMINS:
        return warning(f"{count} admin keys are valid", "`aio keys revoke NAME` for those that are not used")
    return ok(f"{count} admin keys are valid")


def keys_hashed(facts: Facts) -> Finding:
    """The settings hold hashes, which are useless to their reader."""
    settings = facts.settings
    named = {
        "AIO_API_KEYS": settings.api_keys,
        "AIO_ADMIN_KEYS": settings.admin_keys,
        "AIO_VIEWER_KEYS": settings.viewer_keys,
    }
    plain = [name for name, text in named.items() if any("=" in e and "=sha256:" not in e for e in text.split(","))]
    if plain:
        return warning(
            f"keys themselves stand in {', '.join(plain)}", "NAME=sha256:HEX, as `aio new-key NAME` prints it"
        )
    return ok("the settings hold hashes of keys, or none")


def database_password(facts: Facts) -> Finding:
    """Of PostgreSQL."""
    url = make_url(facts.settings.database)
    if url.get_backend_name() == "sqlite":
        return ok("the database is a file")
    return _password("AIO_DATABASE_URL", "the database", url.host or "", url.username or "", url.password or "")


def redis_password(facts: Facts) -> Finding:
    """Redis holds limits, cached answers and queued jobs."""
    if not (url := facts.settings.redis_url):
        return ok("there is no Redis")
    parts = urlsplit(url)
    return _password(
        "AIO_REDIS_URL", "Redis", host_of(url), unquote(parts.username or ""), unquote(parts.password or "")
    )


def data_folder(facts: Facts) -> Finding:
    """Records, keys' hashes and the journal."""
    folder = facts.settings.data_path.absolute()
    if not folder.exists():
        return ok(f"{folder} is made at the first start")
    if (mode := open_mode(folder, 0o077)) is None:
        return ok(f"only its owner reads {folder}")
    says = f"other users of this machine may read {folder} (mode {mode:04o})"
    if folder.stat().st_uid != facts.user:
        return warning(f"{says}, which belongs to another user", "a folder of its own in AIO_DATA_DIR")
    return failed(says, f"chmod 700 {folder} (AIO_DATA_DIR)")


def catalogue_file(facts: Facts) -> Finding:
    """A catalogue names the programs that AIO starts and the servers that see prompts."""
    file = Path(facts.settings.catalog).absolute()
    if not file.is_file():
        return ok("the catalogue is part of the package")
    for path in (file, file.parent):
        if open_mode(path, 0o022) is not None:
            says = f"others may change {path}, which says what AIO starts and which servers it asks"
            return failed(says, f"chmod go-w {path} (AIO_CATALOG)")
    return ok("only its owner changes the catalogue; keys of providers are in the environment")


def adapter_folder(facts: Facts) -> Finding:
    """What admin keys may load over HTTP."""
    folder = facts.settings.adapter_dir
    if not facts.catalog.core_names:
        return ok("there are no models here that adapters could be loaded into")
    if not folder:
        return warning("admin keys may load adapters from any folder that the core reads", "AIO_ADAPTER_DIR")
    if (path := Path(folder)).exists() and open_mode(path, 0o022) is not None:
        return failed(f"others may change the adapters in {folder}", f"chmod go-w {folder} (AIO_ADAPTER_DIR)")
    return ok(f"adapters are loaded from {folder} only")


def texts_deleted(facts: Facts) -> Finding:
    """Prompts and answers do not pile up."""
    settings = facts.settings
    if not settings.store_texts:
        return ok("texts are not stored")
    if settings.text_days is None:
        return failed("prompts and answers are kept for ever", "AIO_TEXT_DAYS, or AIO_STORE_TEXTS=false")
    if settings.retain_days is None and settings.retain_rows is None:
        return warning("records of requests are kept for ever", "AIO_RETAIN_DAYS or AIO_RETAIN_ROWS")
    return ok(f"texts are deleted after {settings.text_days:g} days")


def texts_redacted(facts: Facts) -> Finding:
    """Personal data in what is stored."""
    if facts.settings.store_texts and not facts.settings.redaction:
        return warning("prompts and answers are stored as they are", "AIO_REDACTION, or AIO_STORE_TEXTS=false")
    return ok("stored texts are redacted" if facts.settings.store_texts else "texts are not stored")


def limits_hold(facts: Facts) -> Finding:
    """What a caller may spend while a store is away."""
    settings, open_ones = facts.settings, []
    if settings.budgets_without_database == "open":
        open_ones.append("AIO_BUDGETS_WITHOUT_DATABASE=open")
    if settings.redis_url and settings.limits_without_redis == "open":
        open_ones.append("AIO_LIMITS_WITHOUT_REDIS=open")
    if open_ones:
        return warning(f"limits loosen while a store is away: {', '.join(open_ones)}", "the value `closed`")
    return ok("limits and budgets hold while a store is away")


def log_level(facts: Facts) -> Finding:
    """What an attacker can write into the log."""
    if facts.settings.log_level == "debug":
        return warning("refused connections are logged, so a stranger can fill the log", "AIO_LOG_LEVEL=info")
    return ok("refused connections are not logged")


def user(facts: Facts) -> Finding:
    """What a flaw in AIO could reach."""
    if facts.user == 0:
        return warning("it runs as root", "a user of its own, as in the images (10001)")
    return ok(f"it runs as user {facts.user}")


def _password(variable: str, what: str, host: str, user: str, password: str) -> Finding:
    is_far = bool(host) and not is_loopback_host(host)
    if not password:
        says = f"{what} on {host or 'this machine'} is used without a password"
        return warning(says, variable) if is_far else ok(f"{what} on this machine is used without a password")
    if password.lower() in _KNOWN_PASSWORDS | {user.lower()} or len(password) < MIN_PASSWORD:
        says = f"the password of {what} is short or of an example"
        mend = f"a random one in {variable} and in the server"
        return failed(says, mend) if is_far else warning(says, mend)
    return ok(f"{what} has a password of its own")


def callers_need_keys(facts: Facts) -> Finding:
    """No stranger gets answers."""
    if facts.needs_keys:
        return ok("every caller needs a key")
    host = facts.settings.host
    if not facts.is_reachable:
        return ok(f"callers need no key, and only this machine reaches {host}")
    if facts.settings.insecure:
        return failed(
            f"callers need no key, and other machines reach AIO_HOST={host}",
            "unset AIO_INSECURE and make a key: `aio keys create NAME`, or `aio new-key` for AIO_API_KEYS",
        )
    if facts.stored is None:
        return warning(
            "the database cannot be read; while it is away every caller is refused",
            "see AIO_DATABASE_URL, or AIO_API_KEYS",
        )
    return failed(
        f"there is no key, so a gateway on AIO_HOST={host} does not start",
        "make a key: `aio keys create NAME`, or `aio new-key` for AIO_API_KEYS",
    )


def host_names(facts: Facts) -> Finding:
    """Without keys the Host header keeps rebound names out."""
    if "*" not in _entries(facts.settings.allowed_hosts):
        return ok("callers without a key reach it by known names only")
    if facts.needs_keys:
        return ok("every host name is allowed, and every caller needs a key")
    return failed(
        "AIO_ALLOWED_HOSTS=* lets a web page use a gateway without keys under a name of its own",
        "list the names in AIO_ALLOWED_HOSTS",
    )


def web_pages(facts: Facts) -> Finding:
    """Which origins' pages may use the API."""
    origins = _entries(facts.settings.cors_origins)
    if "*" in origins:
        says = "AIO_CORS_ORIGINS=* lets every web page call the API"
        mend = "list the origins in AIO_CORS_ORIGINS"
        return warning(f"{says}, with a key that it knows", mend) if facts.needs_keys else failed(says, mend)
    plain = sorted(origin for origin in origins if is_plain_and_remote(origin))
    if plain:
        return warning(
            f"pages of {', '.join(plain)} arrive unencrypted and can be changed on their way", "AIO_CORS_ORIGINS"
        )
    return ok("pages of other sites may not use it" if not origins else f"pages of {len(origins)} origins may use it")


def connections_encrypted(facts: Facts) -> Finding:
    """AIO serves plain HTTP; a proxy in front has the certificate."""
    if not facts.is_reachable:
        return ok("only this machine connects; a proxy on it may add TLS")
    return warning(
        f"keys, prompts and answers arrive as plain HTTP on AIO_HOST={facts.settings.host}",
        "put a proxy with TLS in front and let nothing else reach AIO_PORT",
    )


def trusted_proxies(facts: Facts) -> Finding:
    """Whose word about a client's address and scheme is taken."""
    try:
        TrustedProxies(facts.settings.trusted_proxies)
    except SettingsError as error:
        return failed(str(error), "the proxies' own addresses in AIO_TRUSTED_PROXIES")
    entries = _entries(facts.settings.trusted_proxies)
    if facts.is_reachable and not entries:
        return warning(
            "behind a proxy every client has the proxy's address, and cookies of the dashboard are not marked Secure",
            "the proxies' addresses in AIO_TRUSTED_PROXIES, where there are any",
        )
    return ok("no proxy is trusted" if not entries else "named proxies alone are trusted")


def sign_in_encrypted(facts: Facts) -> Finding:
    """Codes and tokens of single sign-on."""
    named = {"AIO_OIDC_ISSUER": facts.settings.oidc_issuer, "AIO_OIDC_REDIRECT_URL": facts.settings.oidc_redirect_url}
    plain = [name for name, url in named.items() if is_plain_and_remote(url)]
    if plain:
        return failed(f"single sign-on uses plain HTTP: {', '.join(plain)}", f"an https URL in {', '.join(plain)}")
    return ok("single sign-on uses HTTPS" if facts.settings.oidc_issuer else "there is no single sign-on")


def reports_encrypted(facts: Facts) -> Finding:
    """Traces, alerts and error reports leave the machine encrypted."""
    settings = facts.settings
    named = {**_alert_webhooks(settings), "AIO_ERROR_REPORT_DSN": settings.error_report_dsn}
    if settings.trace_exporter == "otlp":
        named |= {
            "AIO_OTLP_TRACES_ENDPOINT": settings.otlp_traces_endpoint,
            "AIO_OTLP_ENDPOINT": "" if settings.otlp_traces_endpoint else settings.otlp_endpoint,
        }
    plain = [name for name, url in named.items() if is_plain_and_remote(url)]
    if plain:
        return failed(f"sent unencrypted to another machine: {', '.join(plain)}", f"an https URL in {', '.join(plain)}")
    return ok("traces, alerts and error reports leave this machine encrypted or not at all")


def reports_reachable(facts: Facts) -> Finding:
    """Webhook, traces, error reports and price list go to web servers, and to no cloud's credentials."""
    settings = facts.settings
    named = {
        **_alert_webhooks(settings),
        "AIO_ERROR_REPORT_DSN": settings.error_report_dsn,
        "AIO_OTLP_TRACES_ENDPOINT": settings.otlp_traces_endpoint,
        "AIO_OTLP_ENDPOINT": settings.otlp_endpoint,
        # It may be a file.
        "AIO_PRICE_LIST_URL": settings.price_list_url if ":" in settings.price_list_url else "",
    }
    odd = [name for name, url in named.items() if url and not _is_web_server(url)]
    if odd:
        return failed(
            f"no server of yours can be behind {', '.join(odd)}: another scheme than http and https, no host, or an "
            "address where clouds have their credentials",
            f"an https URL in {', '.join(odd)}",
        )
    return ok("webhook, traces, error reports and price list name web servers or nothing")


def _alert_webhooks(settings: Settings) -> dict[str, str]:
    return {
        "AIO_ALERT_WEBHOOK": settings.alert_webhook,
    }


def _is_web_server(url: str) -> bool:
    host = host_of(url)
    return url.lower().startswith(("http://", "https://")) and host != "" and not is_metadata_host(host)


def tiers_encrypted(facts: Facts) -> Finding:
    """Keys of providers and prompts leave the machine encrypted."""
    plain = []
    for spec in (*facts.catalog.tiers, *facts.catalog.targets):
        if (remote := spec.remote) is not None and remote.engine is None:
            urls = [remote.base_url, *remote.base_urls, *(replica.base_url for replica in remote.replicas)]
            plain += [f"{spec.name} ({host_of(url)})" for url in urls if url and is_plain_and_remote(url)]
    if plain:
        return warning(
            f"prompts, and keys where there are any, go unencrypted to {', '.join(plain)}",
            "an https URL in the catalogue, unless that network is yours alone",
        )
    return ok("tiers are on this machine or asked over HTTPS")


def stores_encrypted(facts: Facts) -> Finding:
    """Connections to database and Redis."""
    plain = []
    database = make_url(facts.settings.database)
    modes = {str(database.query[name]) for name in ("ssl", "sslmode") if name in database.query}
    if database.host and not is_loopback_host(database.host) and modes <= {"disable", "allow", "prefer"}:
        plain.append("AIO_DATABASE_URL (?sslmode=require)")
    redis = facts.settings.redis_url
    if redis.startswith("redis://") and not is_loopback_host(host_of(redis)):
        plain.append("AIO_REDIS_URL (rediss://)")
    if plain:
        return warning(f"not encrypted: {', '.join(plain)}", "these URLs, unless that network is yours alone")
    return ok("database and Redis are on this machine or reached over TLS")


def cores_private(facts: Facts) -> Finding:
    """Who may talk to the cores, which ask for no key."""
    if facts.settings.cluster:
        return warning(
            "cores and Ray's own ports, which run any code, listen on the network of the cluster",
            "let only its nodes and the gateways reach them (AIO_CLUSTER; docs/reference/ray.md)",
        )
    folder = facts.settings.socket_path.absolute().parent
    if not folder.exists() or open_mode(folder, 0o022) is None:
        return ok("cores are in this process, or on sockets in a folder that others cannot change")
    says, mend = f"others may replace the cores' sockets in {folder}", "a folder of mode 0700 in AIO_CORE_SOCKET"
    return failed(says, mend) if folder.stat().st_uid == facts.user else warning(says, mend)


def cores_encrypted(facts: Facts) -> Finding:
    """Prompts and answers between gateways and the cores of other machines."""
    if not facts.settings.cluster:
        return ok("no core is on another machine")
    if facts.settings.core_tls == "off":
        return warning(
            "AIO_CORE_TLS=off leaves the encryption between gateways and cores to the network",
            "a folder of `aio certificates` in AIO_CORE_TLS, unless a service mesh encrypts",
        )
    return ok("gateways and cores of other machines speak mutual TLS")


def _entries(setting: str) -> set[str]:
    return {entry.strip() for entry in setting.split(",")} - {""}


# In the order of docs/reference/security.md, where an item's id is the name of its function, with hyphens.
_CHECKS: tuple[Callable[[Facts], Finding], ...] = (
    callers_need_keys, host_names, web_pages, connections_encrypted, trusted_proxies, sign_in_encrypted,
    reports_encrypted, reports_reachable, tiers_encrypted, stores_encrypted, cores_private, cores_encrypted,
    admin_keys, keys_hashed, database_password, redis_password, data_folder, catalogue_file, adapter_folder,
    texts_deleted, texts_redacted, limits_hold, log_level, user,
)  # fmt: skip
ITEMS = {check.__name__.replace("_", "-"): check for check in _CHECKS}


class Checked(msgspec.Struct, frozen=True):
    """An item's result. `says`: one sentence; `mend`: the setting that mends it, "" where it is ok."""

    id: str
    status: Status
    says: str
    mend: str = ""


async def check_security(settings: Settings) -> list[Checked]:
    """Verify every item. Reads settings, files, catalogue and database; changes and starts nothing.

    Raises `CatalogError` or `DatabaseUrlError` where the configuration starts nothing anyway.
    """
    catalog, stored = load_catalog(settings.catalog), await stored_keys(settings)
    facts = Facts(settings=settings, catalog=catalog, stored=stored, now=time.time(), user=os.geteuid())
    return [Checked(name, *check(facts)) for name, check in ITEMS.items()]
