"""The sources' stage budget of a 100-token answer (SPEC GW-02) compared with measurements of each stage."""

from pathlib import Path
from typing import Any

import msgspec

from quality.estimates.served import BUDGET_MS, TOKENS


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """A stage, in milliseconds; `measured_ms` is None without a measurement. `source`: file and figure."""

    name: str
    budget_ms: float
    measured_ms: float | None
    source: str


class StageTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Medians in milliseconds over so many answers, one at a time, by a tier that runs here.

    `queue_ms` of waiting for the first step, `planning_ms` for the steps of the prompt, then `prefill_ms`, of which
    `kv_ms` went to the prompt's KV blocks, then `token_ms` for each further token. `route_ms` of a decision and
    `stream_ms` of the rest of an answer over HTTP, of the same run. `machine`: as of a measurement.
    """

    model: str
    requests: int
    prompt_tokens: int
    queue_ms: float
    planning_ms: float
    kv_ms: float
    prefill_ms: float
    token_ms: float
    route_ms: float | None = None
    stream_ms: float | None = None
    started: str = ""
    machine: dict[str, Any] = {}


def stages(measurements: Path) -> list[Stage]:
    """Return all five stages, as stages.json timed them in one run; without it none is measured."""
    times = stage_times(measurements)
    found = {} if times is None else _timed_stages(times)
    return [
        Stage(name=name, budget_ms=budget, measured_ms=measured, source=source if measured is not None else "")
        for name, budget in BUDGET_MS.items()
        for measured, source in [found.get(name, (None, ""))]
    ]


def stage_times(measurements: Path) -> StageTimes | None:
    """What stages.json says, if it is there."""
    path = measurements / "stages.json"
    return msgspec.json.decode(path.read_bytes(), type=StageTimes) if path.is_file() else None


def _timed_stages(times: StageTimes) -> dict[str, tuple[float | None, str]]:
    of = f"stages.json, p50 of {times.requests}"
    kv = f"of {times.prompt_tokens} tokens, of which {times.kv_ms:.2f} ms are for KV blocks"
    return {
        "route": (times.route_ms, f"{of} decisions of a server"),
        "schedule": (
            times.queue_ms + times.planning_ms,
            f"{of} answers one at a time: waiting, and planning the prompt's steps",
        ),
        "prefill": (times.prefill_ms, f"stages.json, prompts {kv}"),
        "decode": ((TOKENS - 1) * times.token_ms, f"stages.json, {TOKENS - 1} times {times.token_ms:.2f} ms a token"),
        "stream": (times.stream_ms, "stages.json, a streamed answer at its client minus the other stages, p50"),
    }
