"""One trace per request holds a span per stage, under the caller's own trace if there is one."""

import msgspec
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gateway.settings import Settings, SettingsError
from gateway.telemetry import traces
from gateway.telemetry.traces import Traces, span_exporter
from tests.gateway.running_gateway import running_gateway

HELLO = [{"role": "user", "content": "Say the secret word."}]


async def test_a_trace_shows_every_stage_and_no_text(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = InMemorySpanExporter()
    monkeypatch.setattr(traces, "ConsoleSpanExporter", lambda: memory)
    async with running_gateway(msgspec.structs.replace(settings, trace_exporter="console")) as gateway:
        trace_id = "0af7651916cd43dd8448eb211c80319c"
        await gateway.openai.chat.completions.create(
            model="auto", messages=HELLO, extra_headers={"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}
        )
    spans = {span.name: span for span in memory.get_finished_spans()}
    assert set(spans) == {"chat smollm2-int4", "route", "schedule", "kv", "engine", "stream"}
    root = spans["chat smollm2-int4"]
    assert {f"{span.context.trace_id:032x}" for span in spans.values()} == {trace_id}
    assert all(span.parent.span_id == root.context.span_id for name, span in spans.items() if span is not root)
    assert root.attributes["gen_ai.usage.input_tokens"] == 8
    assert root.attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert spans["kv"].attributes["aio.kv.preemptions"] == 1
    for span in spans.values():
        assert root.start_time <= span.start_time <= span.end_time <= root.end_time
        assert "secret" not in span.to_json()
        assert "Hello" not in span.to_json()


async def test_a_failed_attempt_has_a_span_of_its_own(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = InMemorySpanExporter()
    monkeypatch.setattr(traces, "ConsoleSpanExporter", lambda: memory)
    async with running_gateway(msgspec.structs.replace(settings, trace_exporter="console")) as gateway:
        gateway.tier(1).fail_at = 0
        await gateway.openai.chat.completions.create(model="auto", messages=HELLO)
    failed = next(span for span in memory.get_finished_spans() if span.name == "failed attempt")
    assert dict(failed.attributes) == {"aio.tier": 1, "aio.status": "error"}


def test_nothing_is_traced_unless_asked_for(settings: Settings) -> None:
    assert span_exporter(settings) is None


def test_an_exporter_that_is_not_installed_is_refused_by_name(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(traces.importlib, "import_module", missing)
    with pytest.raises(SettingsError, match="opentelemetry-exporter-otlp-proto-http"):
        span_exporter(msgspec.structs.replace(settings, trace_exporter="otlp"))


def test_traces_can_be_closed_without_a_request() -> None:
    exporter = InMemorySpanExporter()
    Traces(exporter).close()
    assert exporter.get_finished_spans() == ()
