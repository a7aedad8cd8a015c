"""What `aio serve` prints: its address, a first request to try, and what happens when a dependency fails; and what it
tells systemd."""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from gateway import __version__
from gateway.base.derived_settings import without_secrets
from gateway.base.settings import Settings
from gateway.edge.proxies import authority_of
from gateway.operations.quality_loop.label_sources import budget_text, labels_text

if TYPE_CHECKING:
    from tiers.catalog.catalog import Catalog

FAILURE_POLICY = {
    "database": "down: requests are served, records wait in the journal, nothing is lost",
    "classifier": "fails: prompts are routed by length",
    "tier": "fails before its first token: the next tier up answers, once; after it: an error event",
    "core": "down: other tiers answer, or 503 with Retry-After; AIO starts it again, or reconnects",
    "journal disk": "stalls: requests are served, records beyond 64 MiB are refused and counted",
}


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


def ready_text(host: str, port: int) -> str:
    """Return the gateway's address and a first request."""
    url = url_of(host, port)
    body = '{"model": "auto", "messages": [{"role": "user", "content": "What is the capital of Japan?"}]}'
    return (
        f"\nAIO is ready on {url}  (API: {url}/v1, dashboard: {url}/admin, documentation: {url}/docs, "
        f"metrics: {url}/metrics)\nTry:\n\n"
        f"  curl -si {url}/v1/chat/completions -H 'Content-Type: application/json' \\\n    -d '{body}'\n"
    )


def problems_text(problems: Mapping[str, str]) -> str:
    """Return what does not serve yet, by `Operations.problems`; empty if nothing is missing."""
    if not problems:
        return ""
    lines = "".join(f"  {name}: {reason}\n" for name, reason in problems.items())
    return f"\nNot there yet (GET /health/ready says when):\n{lines}"


def admin_key_text(key: str, url: str) -> str:
    """Return the text that shows the first admin key, once."""
    return (
        f"\nAdmin key, shown once:  {key}\n"
        f"Sign in with it at {url}/admin. Another: aio keys create NAME --scope admin\n"
    )


def url_of(host: str, port: int) -> str:
    """Return the URL of a server that listens there, as seen from this machine."""
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104 - only compared
    return f"http://{authority_of(shown, port)}"


def worker_text(host: str, port: int) -> str:
    return f"AIO answers batches; probes and metrics on http://{authority_of(host, port)}"


def start_text(settings: Settings, why: str) -> str:
    """Return what starts: the version, and what it works with. `why`: where the catalogue comes from. Without passwords
    of URLs, and without what they may have as parameters."""
    workers = f"   workers: {settings.gateway_workers}" if settings.gateway_workers > 1 else ""
    return (
        f"AIO {__version__}   role: {settings.role}{workers}\n"
        f"catalogue: {settings.catalog} ({why})\n"
        f"data: {settings.data_path}\n"
        f"database: {without_secrets(settings.database)}\n"
        f"Redis: {without_secrets(settings.redis_url) or 'none (AIO_REDIS_URL)'}\n"
        f"traces: {_trace_target(settings)}"
    )


def callers_text(asks_for_keys: bool) -> str:
    """Return whether callers need a key, in a sentence."""
    return (
        "Callers need an API key"
        if asks_for_keys
        else "Callers need no key, until the first is made: aio keys create NAME"
    )


def _trace_target(settings: Settings) -> str:
    if settings.trace_exporter == "none":
        return "none (AIO_TRACE_EXPORTER)"
    if settings.trace_exporter == "console":
        return "standard output"
    return without_secrets(settings.otlp_traces_endpoint or f"{settings.otlp_endpoint.rstrip('/')}/v1/traces")


def policy_text(settings: Settings, catalog: "Catalog") -> str:
    """Return what happens when a dependency fails, one line each, and where labels come from."""
    policies = FAILURE_POLICY | {
        "budgets": (
            "without the database slices in memory are spent to their end, then requests "
            + _WHEN_AWAY[settings.budgets_without_database]
            + f" (AIO_BUDGETS_WITHOUT_DATABASE={settings.budgets_without_database})"
        )
    }
    if settings.cluster:
        policies["core"] = (
            "one replica lost: requests without output are sent to another, started streams end with an error event;"
            " all replicas lost: other tiers answer, or 503 with Retry-After"
        )
    if settings.redis_url:
        policies["redis"] = (
            f"down: each process counts by itself (AIO_LIMITS_WITHOUT_REDIS={settings.limits_without_redis})"
            if settings.limits_without_redis == "open"
            else "down: keys with limits get 503 (AIO_LIMITS_WITHOUT_REDIS=closed)"
        )
    return (
        "When something fails:\n"
        + "\n".join(f"  {name}: {policy}" for name, policy in policies.items())
        + f"\n{labels_text(settings, catalog)}\n{budget_text(settings, catalog)}".rstrip()
    )


_WHEN_AWAY = {"open": "go on and are charged later", "closed": "of keys with budgets get 503"}
