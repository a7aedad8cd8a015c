"""A trace per request has a span per stage, continues the caller's trace if there is one, and goes on in remote
servers."""

import re
from pathlib import Path

import msgspec
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gateway.base.identity import TraceContext, trace_context
from gateway.base.settings import Settings, SettingsError
from gateway.inference.served_catalogue import ServedCatalogue
from gateway.telemetry import traces
from gateway.telemetry.traces import Traces, span_exporter
from quality.records.record import Record
from tests.gateway.telemetry.otlp_collector import attribute, running_collector
from tests.support.app import RunningGateway, running_gateway
from tests.support.core import laptop_hash_core
from tests.support.upstream import Call, LoopbackServer
from tests.tiers.remote.recording_proxy import recording_proxy
from tests.tiers.tier_world import remote_spec
from tiers.remote.remote_tier import RemoteTier

HELLO = [{"role": "user", "content": "Say the secret word."}]
TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE_ID}-{PARENT_ID}-01"
STAGES = {"route", "schedule", "kv cache", "prefill", "decode", "stream"}


def traced(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, ratio: float = 1.0
) -> tuple[Settings, InMemorySpanExporter]:
    memory = InMemorySpanExporter()
    monkeypatch.setattr(traces, "ConsoleSpanExporter", lambda: memory)
    return msgspec.structs.replace(settings, trace_exporter="console", trace_ratio=ratio), memory


async def ask(gateway: RunningGateway, **headers: str) -> None:
    assert (await gateway.ask("Say the secret word.", headers=headers)).status_code == 200


async def test_a_trace_shows_every_stage_and_no_text(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    exporting, memory = traced(settings, monkeypatch)
    async with running_gateway(exporting) as gateway:
        await ask(gateway, traceparent=TRACEPARENT)
    spans = {span.name: span for span in memory.get_finished_spans()}
    assert set(spans) == {"chat smollm2-int4", *STAGES}
    root = spans["chat smollm2-int4"]
    assert {f"{span.context.trace_id:032x}" for span in spans.values()} == {TRACE_ID}
    assert f"{root.parent.span_id:016x}" == PARENT_ID
    assert all(span.parent.span_id == root.context.span_id for name, span in spans.items() if span is not root)
    assert len({span.context.span_id for span in spans.values()}) == 7
    assert root.attributes["gen_ai.usage.input_tokens"] == 8
    assert root.attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert spans["kv cache"].attributes["aio.kv.preemptions"] == 1
    assert spans["decode"].attributes["aio.decode.steps"] == 5
    for span in spans.values():
        assert root.start_time <= span.start_time <= span.end_time <= root.end_time
        assert "secret" not in span.to_json()
        assert "Hello" not in span.to_json()


async def test_stages_of_a_core_follow_each_other_without_a_gap(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporting, memory = traced(settings, monkeypatch)
    async with running_gateway(exporting, core=laptop_hash_core(exporting), scripted=False) as gateway:
        body = {"model": "auto", "messages": HELLO, "max_tokens": 4}
        answer = (await gateway.http.post("/v1/chat/completions", json=body)).json()
        record: Record = await gateway.serving.records.find(answer["id"])  # type: ignore[attr-defined]
    spans = {span.name: span for span in memory.get_finished_spans()}
    schedule, kv, prefill, decode = (spans[name] for name in ("schedule", "kv cache", "prefill", "decode"))
    told = dict(schedule.attributes or {})
    assert told["aio.planning_seconds"] > 0
    assert kv.end_time > kv.start_time
    assert (schedule.end_time, kv.end_time, prefill.end_time) == (kv.start_time, prefill.start_time, decode.start_time)
    scheduled = told["aio.queue_seconds"] + told["aio.planning_seconds"]
    assert record.timings.queue_ms == pytest.approx(scheduled * 1e3)
    assert (schedule.end_time - schedule.start_time) / 1e9 == pytest.approx(scheduled, abs=1e-6)


async def test_a_failed_attempt_has_a_span_of_its_own(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    exporting, memory = traced(settings, monkeypatch)
    async with running_gateway(exporting) as gateway:
        gateway.tier(1).fail_at = 0
        await ask(gateway)
    failed = next(span for span in memory.get_finished_spans() if span.name == "earlier attempt")
    assert dict(failed.attributes or {}) == {"aio.tier": 1, "aio.status": "error"}


async def test_an_answer_that_fails_is_an_error_whose_words_stay_out_of_the_trace(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporting, memory = traced(settings, monkeypatch)
    async with running_gateway(exporting) as gateway:
        for tier in gateway.tiers:
            tier.fail_at, tier.error = 0, RuntimeError("quoting the secret word")
        answer = await gateway.http.post("/v1/chat/completions", json={"model": "auto", "messages": HELLO})
        assert answer.status_code >= 500
    root = next(span for span in memory.get_finished_spans() if span.name.startswith("chat"))
    assert (root.status.is_ok, (root.attributes or {})["error.type"]) == (False, "RuntimeError")
    assert "secret" not in root.to_json()


async def test_otlp_reaches_a_collector_and_the_trace_goes_on_at_a_tier_elsewhere(
    settings: Settings,
) -> None:
    async def well(call: Call) -> None:
        await call.whole("Hi")

    with running_collector() as collector:
        exporting = msgspec.structs.replace(settings, trace_exporter="otlp", otlp_endpoint=collector.url)
        async with LoopbackServer(well) as server, running_gateway(exporting) as gateway:
            remote = RemoteTier(remote_spec(base_url=server.base_url))
            served = gateway.serving.routing.served
            gateway.serving.routing.served = ServedCatalogue(served.catalog, {**served.tiers, 1: remote})
            await ask(gateway, traceparent=TRACEPARENT, tracestate="vendor=1,other=2")
            await remote.close()
            [call] = server.calls
    root = next(span for span in collector.spans if span.name.startswith("chat "))
    # For an answer that came whole, the time of the first token is unknown.
    assert {span.name for span in collector.spans} == {root.name, "route", "generate"}
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE_ID}
    assert root.parent_span_id.hex() == PARENT_ID
    assert call.headers["traceparent"] == f"00-{TRACE_ID}-{root.span_id.hex()}-01"
    assert call.headers["tracestate"] == root.trace_state == "vendor=1,other=2"
    assert attribute(root, "gen_ai.request.model") == "auto"
    assert attribute(root, "gen_ai.response.finish_reasons") == ["stop"]
    assert (collector.services, collector.paths, collector.types) == (
        {"aio-gateway"},
        {"/v1/traces"},
        {"application/x-protobuf"},
    )


async def test_without_an_exporter_a_callers_trace_passes_through_unchanged(settings: Settings) -> None:
    async with running_gateway(settings) as gateway:
        await ask(gateway, traceparent=TRACEPARENT)
        await ask(gateway)
        traced, untraced = gateway.tier(1).requests
    assert traced.trace is not None
    assert (traced.trace.traceparent, untraced.trace) == (TRACEPARENT, None)


async def test_what_the_caller_does_not_record_is_not_recorded_here(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporting, memory = traced(settings, monkeypatch)
    async with running_gateway(exporting) as gateway:
        await ask(gateway, traceparent=TRACEPARENT[:-2] + "00")
        [request] = gateway.tier(1).requests
    assert memory.get_finished_spans() == ()
    assert request.trace is not None
    assert re.fullmatch(rf"00-{TRACE_ID}-[0-9a-f]{{16}}-00", request.trace.traceparent)


def test_a_share_of_the_traces_that_begin_here_is_recorded() -> None:
    drawn = [trace_context({}, 0.25) for _ in range(4000)]
    share = sum(one is not None and one.sampled for one in drawn) / 4000
    assert 0.2 < share < 0.3
    assert len({one.trace_id for one in drawn if one is not None}) == 4000
    assert trace_context({}, None) is None
    never = trace_context({}, 0.0)
    assert never is not None
    assert not never.sampled


@pytest.mark.parametrize(
    "header",
    [
        "",
        "nonsense",
        f"ff-{TRACE_ID}-{PARENT_ID}-01",
        f"00-{'0' * 32}-{PARENT_ID}-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        f"00-{TRACE_ID.upper()}-{PARENT_ID}-01",
        f"{TRACEPARENT}\n",
    ],
)
def test_what_is_no_traceparent_begins_no_trace(header: str) -> None:
    assert trace_context({"traceparent": header, "tracestate": "a=b"}, None) is None
    started = trace_context({"traceparent": header}, 1.0)
    assert started is not None
    assert started.parent_id is None


def test_a_state_that_could_break_a_header_is_dropped() -> None:
    given = trace_context({"traceparent": TRACEPARENT, "tracestate": "a=b\r\nx-evil: 1"}, None)
    assert given == TraceContext(int(TRACE_ID, 16), int(PARENT_ID, 16), None, True, "")
    future = trace_context({"traceparent": f"01-{TRACE_ID}-{PARENT_ID}-03-more"}, None)
    assert future is not None
    assert future.headers.traceparent == TRACEPARENT


def test_nothing_is_traced_unless_asked_for(settings: Settings) -> None:
    assert span_exporter(settings) is None


def test_an_exporter_that_is_not_installed_is_refused_by_name(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(traces.importlib, "import_module", missing)
    with pytest.raises(SettingsError, match="aio-gateway\\[otlp\\]"):
        span_exporter(msgspec.structs.replace(settings, trace_exporter="otlp"))


def test_traces_can_be_closed_without_a_request(tmp_path: Path) -> None:
    exporter = InMemorySpanExporter()
    Traces(exporter).close()
    assert exporter.get_finished_spans() == ()


def test_spans_for_a_collector_of_this_machine_go_through_no_proxy(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_PROXY", raising=False)
    with running_collector() as collector, recording_proxy() as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://{proxy.place}")
        for url in (collector.url, "http://collector.example"):
            exporting = msgspec.structs.replace(settings, trace_exporter="otlp", otlp_endpoint=url)
            provider = TracerProvider()
            provider.add_span_processor(SimpleSpanProcessor(span_exporter(exporting)))  # type: ignore[arg-type]
            provider.get_tracer("test").start_span("look up").end()
    assert [span.name for span in collector.spans] == ["look up"]
    assert [line for line, _ in proxy.asked] == ["POST http://collector.example/v1/traces HTTP/1.1"]
