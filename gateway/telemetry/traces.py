"""OpenTelemetry: one trace per request with one span per stage, built from its timestamps after it has ended.

Attribute names follow OpenTelemetry's semantic conventions for generative AI. While a request runs nothing is recorded;
only its ids are drawn at the start, so that remote servers continue the trace. Spans are made as plain data and handed
to OpenTelemetry's batch processor, which exports them in its own thread.

The texts of a request can be attributes of its span, in the words of OpenTelemetry and of OpenInference. They are those
of the record, which is redacted by then and has none where the key's owner did not consent to storing them.
OpenTelemetry's messages are JSON in one attribute each.
"""

import importlib
import os
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import msgspec
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from gateway import __version__
from gateway.base.identity import TraceContext, new_span_id
from gateway.base.settings import Settings, SettingsError, TraceContent
from gateway.inference.answer import Answer
from gateway.telemetry.request_metrics import operation_name
from gateway.telemetry.telemetry_url import refuse_metadata_behind, telemetry_url
from quality.records.record import Record
from tiers.remote.http_transport import proxy_url

CUT = " [cut]"
MAX_MESSAGES = 256
"""Most turns of a conversation in a span: of more, the last ones."""


class Turn(NamedTuple):
    """One turn within the bounds, by the roles that both conventions have."""

    role: str
    text: str


class ContentAttributes:
    """Makes a span's attributes from a record. `chars`: most characters of prompt, and of answer with reasoning."""

    def __init__(self, convention: TraceContent, chars: int) -> None:
        self._gen_ai = convention in ("gen_ai", "both")
        self._openinference = convention in ("openinference", "both")
        self._chars = chars

    @classmethod
    def of(cls, settings: Settings) -> "ContentAttributes | None":
        """Return None unless texts are asked for."""
        if settings.trace_content == "none":
            return None
        return cls(settings.trace_content, settings.trace_content_chars)

    def of_record(self, record: Record) -> dict[str, Any]:
        """Return the attributes; without texts where the record has none."""
        asked = _turns(record, self._chars)
        answer, left = _cut(record.answer or "", self._chars)
        reasoning, _ = _cut(record.reasoning or "", left)
        is_kept = record.messages is not None
        attributes: dict[str, Any] = {}
        if self._gen_ai and is_kept:
            attributes |= _gen_ai(asked, answer, reasoning, record.finish_reason)
        if self._openinference:
            attributes |= _openinference_figures(record)
            if is_kept:
                attributes |= _openinference_texts(asked, answer)
        return attributes


def _turns(record: Record, chars: int) -> list[Turn]:
    """The conversation's turns, the last ones first to have room: they say what is asked."""
    turns: list[Turn] = []
    for message in reversed((record.messages or [])[-MAX_MESSAGES:]):
        role = message["role"]
        if chars <= 0:
            break
        text, chars = _cut(message["content"], chars)
        turns.append(Turn("user" if role == "prompt" else role, text))
    return turns[::-1]


def _cut(text: str, chars: int) -> tuple[str, int]:
    """Return `text` with at most `chars` characters, and how many are left."""
    if len(text) <= chars:
        return text, chars - len(text)
    return text[: max(0, chars - len(CUT))] + CUT, 0


def _gen_ai(asked: list[Turn], answer: str, reasoning: str, finish_reason: str | None) -> dict[str, Any]:
    said = [{"type": "reasoning", "content": reasoning}] if reasoning else []
    if answer:
        said.append({"type": "text", "content": answer})
    output = {"role": "assistant", "parts": said, "finish_reason": finish_reason or "error"}
    written = {"gen_ai.input.messages": [_gen_ai_message(turn) for turn in asked if not _is_instruction(turn)]}
    if said:
        written["gen_ai.output.messages"] = [output]
    if any(map(_is_instruction, asked)):
        written["gen_ai.system_instructions"] = [_text(turn) for turn in asked if _is_instruction(turn)]
    return {name: msgspec.json.encode(value).decode() for name, value in written.items()}


def _is_instruction(turn: Turn) -> bool:
    return turn.role in ("system", "developer")


def _text(turn: Turn) -> dict[str, Any]:
    return {"type": "text", "content": turn.text}


def _gen_ai_message(turn: Turn) -> dict[str, Any]:
    # The record keeps no ids of calls.
    result = {"type": "tool_call_response", "id": None, "response": turn.text}
    return {"role": turn.role, "parts": [result if turn.role == "tool" else _text(turn)]}


def _openinference_figures(record: Record) -> dict[str, Any]:
    return {
        "openinference.span.kind": "LLM",
        "llm.system": "aio",
        "llm.model_name": record.model,
        "llm.token_count.prompt": record.prompt_tokens,
        "llm.token_count.completion": record.completion_tokens,
        "llm.token_count.total": record.prompt_tokens + record.completion_tokens,
        "llm.token_count.prompt_details.cache_read": record.cached_tokens,
        "llm.token_count.completion_details.reasoning": record.reasoning_tokens,
        "llm.cost.total": record.cost_usd,
    }


def _openinference_texts(asked: list[Turn], answer: str) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "input.value": msgspec.json.encode([turn._asdict() for turn in asked]).decode(),
        "input.mime_type": "application/json",
        "output.value": answer,
        "output.mime_type": "text/plain",
    }
    attributes.update(_flattened("llm.input_messages", asked))
    attributes.update(_flattened("llm.output_messages", [Turn("assistant", answer)] if answer else []))
    return attributes


def _flattened(name: str, turns: list[Turn]) -> Iterator[tuple[str, str]]:
    for index, turn in enumerate(turns):
        yield f"{name}.{index}.message.role", turn.role
        yield f"{name}.{index}.message.content", turn.text


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
    exporter: SpanExporter = otlp.OTLPSpanExporter(endpoint=endpoint, session=_session())
    return exporter


def _session() -> Any:
    """Return a session of `requests`, with which the exporter sends, that goes by our choice of the proxy."""
    import requests

    class Session(requests.Session):
        def merge_environment_settings(self, url: Any, *options: Any) -> Any:
            settings = super().merge_environment_settings(url, *options)
            proxy = proxy_url(httpx.URL(url))
            return {**settings, "proxies": {"all": proxy} if proxy else {}}

    return Session()


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
    resource = Resource.create()
    unnamed = not os.environ.get("OTEL_SERVICE_NAME") and "service.name=" not in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    return resource.merge(Resource({"service.name": "aio-gateway"})) if unnamed else resource


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
        stages.append(("earlier attempt", stamps.routed, stamps.began, failed))
    if first is None or last is None or passed_on is None:
        return [*stages, ("generate", stamps.began, stamps.finished, {})]
    planned = min(stamps.began + stamps.schedule_seconds, first)
    times = stamps.times
    placed = min(planned + times.kv_seconds, first)
    schedule = {"aio.queue_seconds": times.queue_seconds, "aio.planning_seconds": times.planning_seconds}
    kv = {"aio.kv.cached_tokens": record.cached_tokens, "aio.kv.preemptions": times.preemptions}
    decode = {"gen_ai.usage.output_tokens": record.completion_tokens, "aio.decode.steps": len(stamps.gaps) + 1}
    return [
        *stages,
        ("schedule", stamps.began, planned, schedule),
        ("kv cache", planned, placed, kv),
        ("prefill", placed, first, {"gen_ai.usage.input_tokens": record.prompt_tokens}),
        ("decode", first, last, decode),
        ("stream", passed_on, stamps.finished, {"aio.stream": record.stream}),
    ]
