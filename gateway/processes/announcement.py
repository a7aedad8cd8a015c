"""What `aio serve` prints: its settings, its address, what is not ready yet and a first request.

It also notifies systemd."""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress

from gateway import __version__
from gateway.base.derived_settings import without_secrets
from gateway.base.settings import Settings
from gateway.edge.proxies import authority_of

MOST_PROBLEMS = 3
"""So many of the things that do not serve yet are named; `/health/ready` lists all."""


class ServerStartError(RuntimeError):
    """The server did not start; the message or the log before it says why."""


class ServerStoppedError(RuntimeError):
    """A second signal stopped the server, without waiting for its answers."""


def tell_service_manager(*lines: str) -> None:
    """Send lines such as `READY=1` to the service manager that waits for them (sd_notify(3)); without one do nothing.
    One that does not listen changes nothing here."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
        manager.settimeout(_TOLD_SECONDS)
        # A name that no file has begins with a zero byte.
        manager.sendto("\n".join(lines).encode(), address.replace("@", "\0", 1) if address[0] == "@" else address)


_TOLD_SECONDS = 1.0


def ready_text(
    host: str, port: int, *, asks_for_keys: bool | None = None, problems: Mapping[str, str] | None = None
) -> str:
    """Return the gateway's address, whether callers need a key (None: not said), what does not serve yet, by
    `Readiness.problems`, and a first request."""
    url = url_of(host, port)
    body = '{"model": "auto", "messages": [{"role": "user", "content": "What is the capital of Japan?"}]}'
    key = ' -H "Authorization: Bearer $AIO_API_KEY"' if asks_for_keys else ""
    callers = "" if asks_for_keys is None else f"{callers_text(asks_for_keys)}\n"
    return (
        f"\nAIO is ready on {url}  (API: {url}/v1, dashboard: {url}/admin, documentation: {url}/docs)\n"
        f"{callers}{problems_text(problems or {})}"
        f"Try:\n\n  curl -si {url}/v1/chat/completions{key} -H 'Content-Type: application/json' \\\n    -d '{body}'\n"
    )


def problems_text(problems: Mapping[str, str]) -> str:
    """Return what does not serve yet, by `Readiness.problems`; empty if nothing is missing."""
    if not problems:
        return ""
    shown = [f"{name}: {reason}" for name, reason in list(problems.items())[:MOST_PROBLEMS]]
    if len(problems) > MOST_PROBLEMS:
        shown.append(f"{len(problems) - MOST_PROBLEMS} more")
    return f"Not ready yet: {'; '.join(shown)} (GET /health/ready shows when they are)\n"


def admin_key_text(key: str, url: str) -> str:
    """Return the text that shows the first admin key, once."""
    return (
        f"\nAdmin key, shown once:  {key}\n"
        f"Sign in with it at {url}/admin. You can make another one: aio keys create NAME --scope admin\n"
    )


def url_of(host: str, port: int) -> str:
    """Return the URL of a server that listens there, as seen from this machine."""
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104 - only compared
    return f"http://{authority_of(shown, port)}"


def worker_text(host: str, port: int, *, chats: bool = False) -> str:
    """Return what a worker answers, queued `chats` too, and where its probes and metrics are."""
    work = "batches and queued chats" if chats else "batches"
    return f"AIO answers {work}. Probes and metrics are on http://{authority_of(host, port)}"


def start_text(settings: Settings, why: str) -> str:
    """Return what starts: the version, and what it works with. `why`: where the catalogue comes from. Stores and traces
    are named where they are set, without passwords of URLs and without what these may have as parameters."""
    workers = f"   workers: {settings.gateway_workers}" if settings.gateway_workers > 1 else ""
    lines = [
        f"AIO {__version__}   role: {settings.role}{workers}",
        f"catalogue: {settings.catalog} ({why})",
        f"data: {settings.data_path}",
    ]
    stores = []
    if settings.database_url:
        stores.append(f"database: {without_secrets(settings.database_url)}")
    if settings.redis_url:
        stores.append(f"Redis: {without_secrets(settings.redis_url)}")
    if settings.trace_exporter != "none":
        stores.append(f"traces: {_trace_target(settings)}")
    if stores:
        lines.append("   ".join(stores))
    return "\n".join(lines)


def callers_text(asks_for_keys: bool) -> str:
    """Return whether callers need a key, in a sentence."""
    return (
        "Callers need an API key."
        if asks_for_keys
        else "Callers need no API key until you create one: aio keys create NAME"
    )


def _trace_target(settings: Settings) -> str:
    if settings.trace_exporter == "console":
        return "standard output"
    return without_secrets(settings.otlp_traces_endpoint or f"{settings.otlp_endpoint.rstrip('/')}/v1/traces")
