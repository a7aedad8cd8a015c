"""OpenTelemetry: one trace per request with one span per stage, built from its timestamps after it has ended.

Attribute names follow OpenTelemetry's semantic conventions for generative AI. While a request runs nothing is recorded;
only its ids are drawn at the start, so that remote servers continue the trace. Spans are made as plain data and handed
to OpenTelemetry's batch processor, which exports them in its own thread.
"""

import importlib
import os
import time
from typing import Any

import httpx
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from gateway import __version__
from gateway.base.requests.identity import TraceContext, new_span_id
from gateway.base.settings import Settings, SettingsError
from gateway.inference.answering.answer import Answer
from gateway.telemetry.metrics.request_metrics import operation_name
from gateway.telemetry.telemetry_url import refuse_metadata_behind, telemetry_url
from gateway.telemetry.trace_content import ContentAttributes
from quality.records.record import Record

Attributes = dict[str, Any]
# Name, start and end in monotonic seconds, attributes.
Stage = tuple[str, float, float, Attributes]

# Spans, where they have texts.
MAX_WAITING, MAX_SENT = 512, 64

_FLAGS = TraceFlags(TraceFlags.SAMPLED)
_SCOPE = InstrumentationScope("aio.gateway", __version__)
_OK, _ERROR = Status(StatusCode.UNSET), Status(StatusCode.ERROR)


def span_exporter(settings: Settings) -> SpanExporter | None:
    """Return the configured exporter. OTLP follows the environment's OTEL_EXPORTER_OTLP_… in all but the endpoint,
    which is a setting: headers, certificates, timeout, compression.

    Raises `SettingsError` for an endpoint that is not a URL of a collector.
    """
    if settings.trace_exporter == "none":
        return None
    if settings.trace_exporter == "console":
        return ConsoleSpanExporter()
    endpoint = str(collector_url(settings))
    try:
        # The import takes a tenth of a second, and few processes need it.
        otlp = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    except ImportError as error:
        raise SettingsError(f"AIO_TRACE_EXPORTER=otlp: {error}; pip install 'aio-gateway[otlp]'") from None
    exporter: SpanExporter = otlp.OTLPSpanExporter(endpoint=endpoint)
    return exporter


def look_up_collector(settings: Settings) -> None:
    """See `refuse_metadata_behind`, for the configured exporter's endpoint. Blocks."""
    if settings.trace_exporter == "otlp":
        refuse_metadata_behind(_collector_setting(settings), collector_url(settings))


def collector_url(settings: Settings) -> httpx.URL:
    """The URL that spans are posted to. Raises `SettingsError`."""
    exact = settings.otlp_traces_endpoint
    return telemetry_url(_collector_setting(settings), exact or f"{settings.otlp_endpoint.rstrip('/')}/v1/traces")


def _collector_setting(settings: Settings) -> str:
    kind = "TRACES_" if settings.otlp_traces_endpoint else ""
    return f"AIO_OTLP_{kind}ENDPOINT (or OTEL_EXPORTER_OTLP_{kind}ENDPOINT)"


def _resource() -> Resource:
    """OpenTelemetry's variables, and a name of ours where they give none."""
    given = Resource.create()
    unnamed = not os.environ.get("OTEL_SERVICE_NAME") and "service.name=" not in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    return given.merge(Resource({"service.name": "aio-gateway"})) if unnamed else given


class Traces:
    """Turns finished answers into traces, with their texts where `content` is given."""

    def __init__(self, exporter: SpanExporter, content: ContentAttributes | None = None) -> None:
        # Spans with texts are large: as many wait, and go out at once, as a collector takes and memory holds.
        waiting, sent = (None, None) if content is None else (MAX_WAITING, MAX_SENT)
        self._processor = BatchSpanProcessor(exporter, max_queue_size=waiting, max_export_batch_size=sent)
        self._content = content
        self._resource = _resource()

    def observe(self, answer: Answer, record: Record) -> None:
        """Write the spans of one finished request, if its trace is sampled."""
        trace, stamps = answer.request.trace, answer.stamps
        if trace is None or not trace.sampled:
            return
        state = TraceState.from_header([trace.state]) if trace.state else None
        ours = SpanContext(trace.trace_id, trace.span_id, is_remote=False, trace_flags=_FLAGS, trace_state=state)
        # The timestamps are monotonic; spans need wall-clock time.
        offset = time.time() - time.monotonic()
        for name, begin, end, attributes in _stages(answer, record):
            context = SpanContext(trace.trace_id, new_span_id(), is_remote=False, trace_flags=_FLAGS, trace_state=state)
            self._write(name, context, ours, begin + offset, end + offset, attributes, SpanKind.INTERNAL, _OK)
        whole = _root_attributes(answer, record)
        if self._content is not None:
            whole |= self._content.of_record(record)
        status = _OK if record.status == "ok" else _ERROR
        name = f"{whole['gen_ai.operation.name']} {record.model}"
        begin, end = stamps.arrival + offset, stamps.finished + offset
        self._write(name, ours, _parent(trace), begin, end, whole, SpanKind.SERVER, status)

    def close(self) -> None:
        """Export the remaining spans."""
        self._processor.shutdown()  # type: ignore[no-untyped-call]

    def _write(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        begin: float,
        end: float,
        attributes: Attributes,
        kind: SpanKind,
        status: Status,
    ) -> None:
        self._processor.on_end(
            ReadableSpan(
                name,
                context,
                parent,
                self._resource,
                attributes,
                kind=kind,
                status=status,
                start_time=int(begin * 1e9),
                end_time=int(end * 1e9),
                instrumentation_scope=_SCOPE,
            )
        )


def _parent(trace: TraceContext) -> SpanContext | None:
    if trace.parent_id is None:
        return None
    return SpanContext(trace.trace_id, trace.parent_id, is_remote=True, trace_flags=_FLAGS)


def _root_attributes(answer: Answer, record: Record) -> Attributes:
    asked = answer.request.generation
    attributes: Attributes = {
        "gen_ai.operation.name": operation_name(record.api),
        "gen_ai.provider.name": "aio",
        "gen_ai.request.model": record.requested_model,
        "gen_ai.request.temperature": asked.sampling.temperature,
        "gen_ai.request.top_p": asked.sampling.top_p,
        "gen_ai.request.choice.count": asked.n,
        "gen_ai.response.model": record.model,
        "gen_ai.response.id": record.request_id,
        "gen_ai.response.finish_reasons": (record.finish_reason,) if record.finish_reason else (),
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": record.completion_tokens,
        "http.response.status_code": record.http_status,
        "aio.tier": record.tier,
        "aio.cost_usd": record.cost_usd,
        "aio.status": record.status,
        "aio.overhead_ms": record.timings.overhead_ms,
    }
    if asked.max_tokens is not None:
        attributes["gen_ai.request.max_tokens"] = asked.max_tokens
    if record.cache is not None:
        attributes["aio.cache"] = record.cache
    if record.decision.would_be is not None:
        attributes["aio.would_be_tier"] = record.decision.would_be
    if record.error is not None:
        # The type only: error messages may quote the request.
        attributes["error.type"] = record.error.partition(":")[0]
    return attributes


def _stages(answer: Answer, record: Record) -> list[Stage]:
    """The parts of an answer (SPEC GW-01): router, batch aggregator, KV manager, engine (prefill, decode), streamer.

    A prompt of several chunks is planned, and given blocks, once per chunk: each span has the sum.
    """
    stamps, prediction = answer.stamps, record.decision.inputs.prediction
    route = {
        "aio.decision.tier": record.decision.tier,
        "aio.prediction.kind": prediction.kind,
        "aio.classifier.version": prediction.classifier_version,
    }
    stages: list[Stage] = [("route", stamps.arrival, stamps.routed, route)]
    first, last, passed_on = stamps.first_made, stamps.last_made, stamps.first_delta
    if not record.is_made:
        return stages
    earlier = [attempt for attempt in record.attempts[:-1] if attempt.status not in ("compared", "agreed")]
    if earlier:
        failed = {"aio.tier": earlier[0].tier, "aio.status": earlier[0].status}
        stages.append(("earlier attempt", stamps.routed, stamps.attempted, failed))
    if first is None or last is None or passed_on is None:
        return [*stages, ("generate", stamps.attempted, stamps.finished, {})]
    planned = min(stamps.attempted + stamps.schedule_seconds, first)
    times = stamps.times
    placed = min(planned + times.kv_seconds, first)
    schedule = {"aio.queue_seconds": times.queue_seconds, "aio.planning_seconds": times.planning_seconds}
    kv = {"aio.kv.cached_tokens": record.cached_tokens, "aio.kv.preemptions": times.preemptions}
    decode = {"gen_ai.usage.output_tokens": record.completion_tokens, "aio.decode.steps": len(stamps.gaps) + 1}
    return [
        *stages,
        ("schedule", stamps.attempted, planned, schedule),
        ("kv cache", planned, placed, kv),
        ("prefill", placed, first, {"gen_ai.usage.input_tokens": record.prompt_tokens}),
        ("decode", first, last, decode),
        ("stream", passed_on, stamps.finished, {"aio.stream": record.stream}),
    ]
