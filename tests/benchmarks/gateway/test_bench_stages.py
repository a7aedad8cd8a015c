"""The benchmark of stages times real answers of a tier here, and the report shows its figures."""

import json
import secrets
from pathlib import Path

import msgspec
import pytest

from benchmarks.gateway.stages import bench_stages
from benchmarks.gateway.wire_stages import bench_wire
from benchmarks.sources.report import report
from benchmarks.sources.stages import StageTimes, stages
from gateway.base.settings import Settings


@pytest.mark.processes
async def test_every_stage_of_real_answers_is_timed(settings: Settings) -> None:
    times = await bench_stages(
        settings, tier=1, requests=2, prompt_tokens=12, new_tokens=4, progress=lambda name, share: None
    )

    assert (times.requests, times.prompt_tokens) == (2, 12)
    assert times.planning_ms > 0
    assert 0 < times.kv_ms < times.prefill_ms
    assert times.token_ms > 0


@pytest.mark.processes
async def test_a_decision_and_a_streams_way_are_timed_through_a_server(settings: Settings) -> None:
    found = await bench_wire(
        settings, secrets.token_urlsafe(24), tier=1, requests=2, prompt_tokens=12, new_tokens=4,
        progress=lambda name, share: None,
    )  # fmt: skip

    assert found.route_ms > 0
    assert found.stream_ms > 0


def test_all_five_stages_of_one_run_are_held_against_the_budget(tmp_path: Path) -> None:
    times = StageTimes(
        model="m", requests=30, prompt_tokens=128, queue_ms=0.5, planning_ms=0.25, kv_ms=0.125, prefill_ms=20.0,
        token_ms=0.5, route_ms=0.5, stream_ms=1.0,
    )  # fmt: skip
    (tmp_path / "stages.json").write_bytes(msgspec.json.encode(times))
    assert "All stages are of one run on one machine; the sum is within the source's 100 ms." in report(tmp_path)

    slow = msgspec.structs.replace(times, prefill_ms=30.0, token_ms=1.0)
    (tmp_path / "stages.json").write_bytes(msgspec.json.encode(slow))
    assert "the sum is above the source's 100 ms: prefill and decode take longer than it says." in report(tmp_path)

    (tmp_path / "route.json").write_text('{"decision": {"wall_ms": {"p50": 9.0}}}')
    proxied = {"stream": True, "loop": "closed", "offered": 1.0}
    rows = [proxied | {"target": "aio", "p50_ms": 9.0}, proxied | {"target": "direct", "p50_ms": 1.0}]
    (tmp_path / "proxy.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    found = {stage.name: stage.measured_ms for stage in stages(tmp_path)}
    assert (found["route"], found["stream"]) == (0.5, 1.0)
    (tmp_path / "stages.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(slow, route_ms=None)))
    assert "The stages are not all of one run" in report(tmp_path)


def test_the_report_has_scheduling_apart_from_the_prompt(tmp_path: Path) -> None:
    times = StageTimes(
        model="m", requests=30, prompt_tokens=128, queue_ms=0.5, planning_ms=0.25, kv_ms=0.125, prefill_ms=200.0,
        token_ms=10.0,
    )  # fmt: skip
    (tmp_path / "stages.json").write_bytes(msgspec.json.encode(times))

    found = {stage.name: stage for stage in stages(tmp_path)}

    assert {name: stage.measured_ms for name, stage in found.items()} == {
        "route": None, "schedule": 0.75, "prefill": 200.0, "decode": 990.0, "stream": None,
    }  # fmt: skip
    assert "of which 0.12 ms are for KV blocks" in found["prefill"].source
