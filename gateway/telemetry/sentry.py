"""Sends error reports to a tracker with Sentry's protocol: Sentry itself, GlitchTip, Bugsink and others."""

import atexit
import importlib
from typing import Any

import httpx

from gateway.base.settings import SettingsError
from gateway.telemetry.error_reports import RELEASE, ErrorReport, Raised, Send
from gateway.telemetry.telemetry_url import refuse_metadata_behind, telemetry_url
from tiers.remote.http_transport import proxy_url

SETTING = "AIO_ERROR_REPORT_DSN"
# How long the end of a process waits for unsent reports.
FLUSH_SECONDS = 2.0
# The client adds nothing: events are made here, field by field.
_NOTHING_ELSE: dict[str, Any] = {
    "default_integrations": False,
    "auto_enabling_integrations": False,
    "include_local_variables": False,
    "include_source_context": False,
    "max_request_body_size": "never",
    "max_breadcrumbs": 0,
    "auto_session_tracking": False,
    "send_client_reports": False,
    "spotlight": False,
}


def sentry_sender(dsn: str) -> Send:
    """Return a sender of reports to `dsn`, in its own thread, by the library `sentry-sdk`. Blocks for a name lookup.

    Raises `SettingsError` for an invalid DSN, for a cloud's metadata server, and if the library is not installed.
    """
    refuse_metadata_behind(SETTING, telemetry_url(SETTING, dsn))
    try:
        sdk = importlib.import_module("sentry_sdk")
    except ImportError:
        raise SettingsError(f"{SETTING} needs the library sentry-sdk: pip install 'aio-gateway[sentry]'") from None
    try:
        # An empty one turns the library's own choice off.
        proxy = proxy_url(httpx.URL(dsn))
        client = sdk.Client(dsn=dsn, release=RELEASE, http_proxy=proxy, https_proxy=proxy, **_NOTHING_ELSE)
    except sdk.utils.BadDsn as error:
        raise SettingsError(f"{SETTING} is no DSN: {error}") from None
    atexit.register(client.close, timeout=FLUSH_SECONDS)

    def send(report: ErrorReport) -> None:
        client.capture_event(sentry_event(report))

    return send


def sentry_event(report: ErrorReport) -> dict[str, Any]:
    """Return the report in the form of https://develop.sentry.dev/sdk/data-model/event-payloads/."""
    tags = {"role": report.role, "request_id": report.request_id, "tier": report.tier}
    event: dict[str, Any] = {
        "event_id": report.event_id,
        "timestamp": report.timestamp,
        "platform": "python",
        "level": report.level,
        "logger": report.logger,
        "release": RELEASE,
        "tags": {name: str(value) for name, value in tags.items() if value not in (None, "")},
        # Sentry lists causes first.
        "exception": {"values": [_exception(raised) for raised in reversed(report.raised)]},
    }
    if report.trace_id:
        event["contexts"] = {"trace": {"trace_id": report.trace_id, "span_id": report.event_id[:16]}}
    return event


def _exception(raised: Raised) -> dict[str, Any]:
    frames = [
        {"filename": frame.file, "abs_path": frame.file, "lineno": frame.line, "function": frame.function}
        for frame in raised.frames
    ]
    return {"type": raised.type, "module": raised.module, "value": "", "stacktrace": {"frames": frames}}
