"""The ten worst mistakes of a deployment, which a start and `aio check` name: each is wrong wherever these settings can
be meant for (docs/reference/security.md)."""

import os
import stat
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from gateway.base.settings import Settings
from gateway.base.stores.data_folder import KEYS_REQUIRED
from gateway.edge.proxies import is_loopback_host, is_reachable_from_elsewhere

MIN_PASSWORD = 12
# Passwords of examples and of servers' defaults.
_KNOWN_PASSWORDS = {"postgres", "password", "admin", "secret", "changeme", "example", "redis", "aio", "default"}


def exposures(settings: Settings) -> list[str]:
    """Return a sentence for each mistake, with what mends it and without a secret. Reads settings and the modes of
    files; changes nothing."""
    mistakes = [
        *_open_access(settings),
        *_plain_reports(settings),
        *_weak_passwords(settings),
        *_changeable_files(settings),
    ]
    folder = settings.data_path.absolute()
    if _is_own(folder) and (mode := _mode_for_others(folder, 0o077)):
        mistakes.append(f"other users of this machine may read {folder} (mode {mode:04o}): chmod 700, or AIO_DATA_DIR")
    if settings.store_texts and settings.text_days is None:
        mistakes.append("prompts and answers are kept for ever: AIO_TEXT_DAYS, or AIO_STORE_TEXTS=false")
    return mistakes


def _open_access(settings: Settings) -> list[str]:
    """Who else gets answers where no key is needed."""
    if settings.api_keys or (settings.data_path / KEYS_REQUIRED).exists():
        return []
    mistakes = []
    if settings.insecure and is_reachable_from_elsewhere(settings.host):
        who = f"callers need no key, and other machines reach AIO_HOST={settings.host}"
        mistakes.append(f"{who}: unset AIO_INSECURE and make a key by `aio keys create NAME`")
    if "*" in _entries(settings.allowed_hosts):
        mistakes.append(
            "AIO_ALLOWED_HOSTS=* lets a web page use a gateway without keys under its own name: list the names"
        )
    if "*" in _entries(settings.cors_origins):
        mistakes.append("AIO_CORS_ORIGINS=* lets every web page use a gateway without keys: list the origins")
    return mistakes


def _plain_reports(settings: Settings) -> list[str]:
    """What leaves the machine unencrypted: codes of single sign-on; traces and alerts."""
    sends_traces = settings.trace_exporter == "otlp"
    named = {
        "AIO_OIDC_ISSUER": settings.oidc_issuer,
        "AIO_OIDC_REDIRECT_URL": settings.oidc_redirect_url,
        "AIO_OTLP_TRACES_ENDPOINT": settings.otlp_traces_endpoint if sends_traces else "",
        "AIO_OTLP_ENDPOINT": settings.otlp_endpoint if sends_traces and not settings.otlp_traces_endpoint else "",
    }
    posted = [url for url in settings.alert_urls.split() if url.lower().startswith(("http://", "json://"))]
    named["AIO_ALERT_URLS"] = next((f"http{url[4:]}" for url in posted if _is_remote(_parts(url))), "")
    plain = [name for name, url in named.items() if url.lower().startswith("http://") and _is_remote(_parts(url))]
    return [f"{name} sends to another machine unencrypted: write an https URL" for name in plain]


def _weak_passwords(settings: Settings) -> list[str]:
    """Of the database and Redis on other machines."""
    mistakes = []
    for variable, url in (("AIO_DATABASE_URL", settings.database_url), ("AIO_REDIS_URL", settings.redis_url)):
        parts = _parts(url)
        guessable = {*_KNOWN_PASSWORDS, (parts.username or "").lower()}
        password = parts.password or ""
        if _is_remote(parts) and (len(password) < MIN_PASSWORD or password.lower() in guessable):
            mistakes.append(f"the password in {variable} is missing, short or of an example: take a random one")
    return mistakes


def _changeable_files(settings: Settings) -> list[str]:
    """What says which programs run and which servers see prompts, where others may change it."""
    catalog, sockets = Path(settings.catalog).absolute(), settings.socket_path.absolute().parent
    named = {
        "AIO_CATALOG": [catalog, catalog.parent] if catalog.is_file() else [],
        "AIO_ADAPTER_DIR": [Path(settings.adapter_dir).absolute()] if settings.adapter_dir else [],
        "AIO_CORE_SOCKET": [sockets] if _is_own(sockets) else [],
    }
    return [
        f"other users may change {path} ({variable}): chmod go-w"
        for variable, paths in named.items()
        for path in paths
        if _mode_for_others(path, 0o022)
    ]


def _mode_for_others(path: Path, mask: int) -> int:
    """Return the mode of a path that has bits of `mask` for others; 0 for one that they cannot use.

    In a folder with the sticky bit only owners replace files; what is mounted read-only cannot be changed. A group with
    the number of the owner is the owner's alone.
    """
    try:
        info, is_read_only = path.stat(), bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return 0
    if mask == 0o022 and (info.st_mode & stat.S_ISVTX or is_read_only):
        return 0
    others = mask & 0o007 if info.st_gid == info.st_uid != 0 else mask
    return stat.S_IMODE(info.st_mode) if info.st_mode & others else 0


def _is_own(path: Path) -> bool:
    """Whether this user can mend its mode; a platform's volume may belong to another."""
    try:
        return path.stat().st_uid == os.geteuid()
    except OSError:
        return False


def _parts(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        return SplitResult("", "", "", "", "")


def _is_remote(url: SplitResult) -> bool:
    return bool(url.hostname) and not is_loopback_host(url.hostname or "")


def _entries(setting: str) -> set[str]:
    return {entry.strip() for entry in setting.split(",")} - {""}
