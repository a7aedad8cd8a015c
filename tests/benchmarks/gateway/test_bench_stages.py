"""The benchmark of stages times real answers of a tier here, and the report shows its figures."""

import itertools
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from benchmarks.gateway import stages as wire_stages
from benchmarks.gateway.stages import _times, bench_stages, bench_wire
from benchmarks.sources.report import StageTimes, report, stages
from gateway.base.settings import Settings
from gateway.inference.answer import Stamps
from inference_core.protocol import StepTimes
from tests.quality.store.records import make_record


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


def test_the_time_of_a_token_is_that_of_the_gaps_between_tokens() -> None:
    times = StepTimes(queue_seconds=0.125, planning_seconds=0.0625, kv_seconds=0.03125)
    stamps = Stamps(arrival=0.0, routed=0.5, began=1.0, first_made=1.5, last_made=2.5, times=times)

    found = _times([(stamps, make_record(completion_tokens=5))], "m", 12)

    assert (found.queue_ms, found.planning_ms, found.kv_ms) == (125.0, 62.5, 31.25)
    assert (found.prefill_ms, found.token_ms) == (312.5, 250.0)


async def test_the_way_of_a_stream_is_what_its_clients_time_has_beyond_all_other_stages(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent = {"route_ms": 100.0, "queue_ms": 50.0, "prefill_ms": 200.0, "decode_ms": 125.0}
    numbers = itertools.count()

    @asynccontextmanager
    async def server(*_: object) -> AsyncIterator[SimpleNamespace]:
        yield SimpleNamespace(url="http://nowhere")

    async def asked(client: object, model: str, text: str, tokens: int) -> tuple[float, dict[str, Any]]:
        warming_up = next(numbers) < 2 * wire_stages.WARM_UP
        if model == "auto":
            return 9.0, spent | {"route_ms": 77.0 if warming_up else 3.0}
        return 50.0 if warming_up else 0.5, spent

    monkeypatch.setattr(wire_stages, "running_server", server)
    monkeypatch.setattr(wire_stages, "_asked", asked)
    monkeypatch.setattr(wire_stages, "_texts", lambda *_: itertools.repeat("Why?"))
    found = await bench_wire(
        settings, "key", tier=1, requests=1, prompt_tokens=12, new_tokens=4, progress=lambda name, share: None
    )

    assert (found.route_ms, found.stream_ms) == (3.0, 25.0)


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

    (tmp_path / "stages.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(slow, route_ms=None)))
    assert "stages.json` times all five in one run." in report(tmp_path)


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
