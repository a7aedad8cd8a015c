"""Items of the deployment checklist about keys, passwords, files and stored texts."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from sqlalchemy import make_url

from gateway.edge.proxies import is_loopback_host
from gateway.operations.security.security_facts import Facts, Finding, failed, host_of, ok, open_mode, warning

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
