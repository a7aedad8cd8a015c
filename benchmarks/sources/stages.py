"""The sources' stage budget of a 100-token answer (SPEC GW-02) compared with measurements of each stage."""

import json
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.report.measurement import rows_of
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
    """Return all five stages; the total is the sum of the measured ones.

    Schedule, prefill and decode are those of stages.json, in which the three are of the same answers; without it, first
    tokens and gaps of a sweep stand in for the latter two.
    """
    found: dict[str, tuple[float | None, str]] = dict.fromkeys(BUDGET_MS, (None, ""))
    found["schedule"] = (None, "not measured separately from the prefill, which includes it")
    if (route := measurements / "route.json").is_file():
        decision = json.loads(route.read_text())["decision"]["wall_ms"]["p50"]
        found["route"] = float(decision), "route.json, p50 of a decision"
    if (added := _added_by_gateway(measurements / "proxy.jsonl")) is not None:
        found["stream"] = added, "proxy.jsonl, a whole stream through the gateway minus one without it, p50"
    one = next((row for row in rows_of(measurements / "sweep.jsonl") if row.get("concurrency") == 1), None)
    timed = stage_times(measurements)
    if timed is not None:
        found |= _timed_stages(timed)
    elif one is not None:
        gap, prompt = float(one["itl_p50_ms"]), f"{one['mean_prompt']:.0f}-token prompts, one at a time"
        found["prefill"] = float(one["ttft_p50_ms"]), f"sweep.jsonl, TTFT p50 of {prompt}"
        found["decode"] = (TOKENS - 1) * gap, f"sweep.jsonl, {TOKENS - 1} gaps of {gap:.2f} ms (ITL p50)"
    return [
        Stage(name=name, budget_ms=budget, measured_ms=found[name][0], source=found[name][1])
        for name, budget in BUDGET_MS.items()
    ]


def stage_times(measurements: Path) -> StageTimes | None:
    """What stages.json says, if it is there."""
    path = measurements / "stages.json"
    return msgspec.json.decode(path.read_bytes(), type=StageTimes) if path.is_file() else None


def _timed_stages(times: StageTimes) -> dict[str, tuple[float | None, str]]:
    of = f"stages.json, p50 of {times.requests}"
    kv = f"of {times.prompt_tokens} tokens, of which {times.kv_ms:.2f} ms are for KV blocks"
    found = {
        "route": (times.route_ms, f"{of} decisions of a server"),
        "schedule": (
            times.queue_ms + times.planning_ms,
            f"{of} answers one at a time: waiting, and planning the prompt's steps",
        ),
        "prefill": (times.prefill_ms, f"stages.json, prompts {kv}"),
        "decode": ((TOKENS - 1) * times.token_ms, f"stages.json, {TOKENS - 1} times {times.token_ms:.2f} ms a token"),
        "stream": (times.stream_ms, "stages.json, a streamed answer at its client minus the other stages, p50"),
    }
    return {name: one for name, one in found.items() if one[0] is not None}


def _added_by_gateway(path: Path) -> float | None:
    """Includes routing: the proxy measurement sends requests through the whole gateway."""
    p50 = {
        row["target"]: float(row["p50_ms"])
        for row in rows_of(path)
        if row.get("stream") and row.get("loop") == "closed" and row.get("offered") == 1.0
    }
    return p50["aio"] - p50["direct"] if {"aio", "direct"} <= p50.keys() else None
