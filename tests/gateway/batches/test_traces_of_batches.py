"""Lines of a batch belong to their maker's trace, whichever process answers them (SPEC OB-08)."""

from pathlib import Path

import msgspec
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gateway.base.settings import Settings
from gateway.telemetry import traces
from tests.gateway.batches.batching import made, outcome, request_line
from tests.support.app import running_gateway

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE_ID}-{PARENT_ID}-01"


async def test_lines_that_another_process_answers_are_in_the_trace_of_who_made_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporters: list[InMemorySpanExporter] = []

    def exporter() -> InMemorySpanExporter:
        exporters.append(InMemorySpanExporter())
        return exporters[-1]

    monkeypatch.setattr(traces, "ConsoleSpanExporter", exporter)
    settings = Settings(data_dir=str(tmp_path), monitor=False, drain_seconds=5, trace_exporter="console")
    asking_only = msgspec.structs.replace(settings, batch_concurrency=0)
    async with running_gateway(asking_only) as first:
        lines = [request_line(name) for name in ("one", "two")]
        traced = await made(first.openai.with_options(default_headers={"traceparent": TRACEPARENT}), lines)
        untraced = await made(first.openai, [request_line("three")])
        assert not first.tier(1).requests

    async with running_gateway(settings) as second:
        _, output, _ = await outcome(second.openai, traced.id)
        await outcome(second.openai, untraced.id)
        sent = [request.trace for request in second.tier(1).requests]

    assert set(output) == {"one", "two"}
    spans = exporters[-1].get_finished_spans()
    roots = [span for span in spans if span.name.startswith("chat ")]
    ours = [span for span in roots if f"{span.context.trace_id:032x}" == TRACE_ID]
    assert len(roots) == 3
    assert [f"{span.parent.span_id:016x}" for span in ours if span.parent is not None] == [PARENT_ID] * 2
    # The trace goes on to the tiers, and the stages of each line are below its own span.
    onward = {f"00-{TRACE_ID}-{span.context.span_id:016x}-01" for span in ours}
    assert onward <= {trace.traceparent for trace in sent if trace is not None}
    own = {span.context.span_id for span in ours}
    routes = [span.parent.span_id for span in spans if span.name == "route" and span.parent]
    assert own <= set(routes)
