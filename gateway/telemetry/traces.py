"""OpenTelemetry: one trace per request with one span per stage, built from its stamps after it has ended.

Attribute names follow OpenTelemetry's semantic conventions for generative AI. Nothing is recorded while a request
runs, so tracing costs the hot path nothing, and nothing at all unless an exporter is configured.
"""

import importlib
import time
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway.answer import Answer
from gateway.settings import Settings, SettingsError
from quality.record import Record

_propagator = TraceContextTextMapPropagator()


def span_exporter(settings: Settings) -> SpanExporter | None:
    """The configured exporter. Raises `SettingsError` if the OTLP exporter is asked for and not installed."""
    if settings.trace_exporter == "none":
        return None
    if settings.trace_exporter == "console":
        return ConsoleSpanExporter()
    try:
        otlp = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    except ImportError:
        raise SettingsError(
            "AIO_TRACE_EXPORTER=otlp needs the package opentelemetry-exporter-otlp-proto-http; install it or choose "
            "console or none"
        ) from None
    exporter: SpanExporter = otlp.OTLPSpanExporter(endpoint=f"{settings.otlp_endpoint.rstrip('/')}/v1/traces")
    return exporter


class Traces:
    """Turns finished answers into traces."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._provider = TracerProvider(resource=Resource.create({"service.name": "aio-gateway"}))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer: Tracer = self._provider.get_tracer("aio.gateway")

    def observe(self, answer: Answer, record: Record) -> None:
        """Write the spans of one finished request."""
        stamps = answer.stamps
        # Stamps are monotonic; spans want the wall clock.
        offset = time.time() - time.monotonic()

        def ns(seconds: float) -> int:
            return int((seconds + offset) * 1e9)

        parent = _propagator.extract({"traceparent": answer.ask.traceparent}) if answer.ask.traceparent else None
        root = self._tracer.start_span(
            f"{'chat' if record.api == 'chat' else 'text_completion'} {record.model}",
            context=parent,
            kind=SpanKind.SERVER,
            start_time=ns(stamps.arrival),
            attributes=_attributes(record),
        )
        if record.status != "ok":
            root.set_status(Status(StatusCode.ERROR, record.status))
        within = trace.set_span_in_context(root)
        for name, begin, end, attributes in _stages(answer, record):
            stage = self._tracer.start_span(name, context=within, start_time=ns(begin), attributes=attributes)
            stage.end(end_time=ns(end))
        root.end(end_time=ns(stamps.finished))

    def close(self) -> None:
        """Export what is left."""
        self._provider.shutdown()


def _attributes(record: Record) -> dict[str, Any]:
    return {
        "gen_ai.operation.name": "chat" if record.api == "chat" else "text_completion",
        "gen_ai.provider.name": "aio",
        "gen_ai.request.model": record.requested_model,
        "gen_ai.response.model": record.model,
        "gen_ai.response.id": record.request_id,
        "gen_ai.response.finish_reasons": [record.finish_reason] if record.finish_reason else [],
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": record.completion_tokens,
        "aio.tier": record.tier,
        "aio.cost_usd": record.cost_usd,
        "aio.status": record.status,
        "aio.overhead_ms": record.timings.overhead_ms,
    }


def _stages(answer: Answer, record: Record) -> list[tuple[str, float, float, dict[str, Any]]]:
    """Stage name, begin and end in monotonic seconds, attributes (SPEC GW-01)."""
    stamps, prediction = answer.stamps, record.decision.inputs.prediction
    route = {
        "aio.decision.tier": record.decision.tier,
        "aio.prediction.kind": prediction.kind,
        "aio.classifier.version": prediction.classifier_version,
    }
    stages: list[tuple[str, float, float, dict[str, Any]]] = [("route", stamps.arrival, stamps.routed, route)]
    first = stamps.first_delta
    if stamps.attempted > stamps.routed:
        failed = {"aio.tier": record.attempts[0].tier, "aio.status": record.attempts[0].status}
        stages.append(("failed attempt", stamps.routed, stamps.attempted, failed))
    if first is None:
        return [*stages, ("engine", stamps.attempted, stamps.finished, {})]
    queued = min(stamps.attempted + stamps.queue_seconds, first)
    last = stamps.last_delta or first
    kv = {"aio.kv.cached_tokens": record.cached_tokens, "aio.kv.preemptions": stamps.preemptions}
    return [
        *stages,
        ("schedule", stamps.attempted, queued, {"aio.queue_seconds": stamps.queue_seconds}),
        ("kv", queued, first, kv),
        ("engine", queued, last, {"gen_ai.usage.output_tokens": record.completion_tokens}),
        ("stream", first, stamps.finished, {"aio.stream": record.stream}),
    ]
