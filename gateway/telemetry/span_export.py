"""The export of traces, of which a process without it imports nothing: OpenTelemetry is the extra `otlp`."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from gateway.base.settings import Settings, SettingsError
from inference_core.extras import require_extra

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

    from gateway.telemetry.traces import Traces

log = logging.getLogger(__name__)


def configured_exporter(settings: Settings) -> "SpanExporter | None":
    """Return the exporter of traces, None without one. Raises `MissingExtraError`, and `SettingsError` for an endpoint
    that is not a URL of a collector and for texts without an exporter."""
    if settings.trace_exporter == "none":
        if settings.trace_content != "none":
            raise SettingsError(
                f"AIO_TRACE_CONTENT={settings.trace_content}: AIO exports no traces; set AIO_TRACE_EXPORTER too"
            )
        return None
    require_extra("otlp", f"exporting traces (AIO_TRACE_EXPORTER={settings.trace_exporter})")
    from gateway.telemetry.traces import span_exporter

    return span_exporter(settings)


@asynccontextmanager
async def running_traces(settings: Settings, exporter: "SpanExporter") -> "AsyncIterator[Traces]":
    """The traces that go to `exporter` while the context is open."""
    from gateway.telemetry.traces import ContentAttributes, Traces, look_up_collector

    await asyncio.to_thread(look_up_collector, settings)
    content = ContentAttributes.of(settings)
    if content is not None and not settings.redaction:
        log.warning("texts of requests go into traces as they are: AIO_TRACE_CONTENT is set and AIO_REDACTION is not")
    traces = Traces(exporter, content)
    try:
        yield traces
    finally:
        traces.close()
