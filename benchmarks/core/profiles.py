"""What the profiles of live knobs trade: each of them under the same load, in turn (SPEC FR-04)."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from benchmarks.core.load_rows import load_row
from benchmarks.core.memory_watch import MemoryWatch
from benchmarks.core.mixed_load import mixed_jobs
from benchmarks.report.measured import Spread
from benchmarks.report.measurement import Measurement, Row
from benchmarks.report.rounds import geometric_interval, spread
from gateway.planning.load_test.run import CoreTarget, LoadRun
from gateway.planning.load_test.workload import Load
from gateway.runtime.cores.knob_profiles import CATALOGUE, PROFILES
from inference_core.kv_cache.layout import KVLayout

FIGURES = (
    "out_tok_s",
    "ttft_p50_ms",
    "ttft_p99_ms",
    "itl_p50_ms",
    "itl_p99_ms",
    "e2e_p95_ms",
    "running_mean",
    "kv_mb_mean",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions:
    """The mixed load of the ablation: `requests`, a multiple of 16, with `concurrency` in flight, under each profile in
    each of `rounds`. Raises `ValueError`."""

    rounds: int = 3
    requests: int = 192
    concurrency: int = 96
    seed: int = 7
    timeout: float = 900.0

    def __post_init__(self) -> None:
        for name in ("rounds", "requests", "concurrency"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.requests % 16:
            raise ValueError(f"requests is {self.requests}; the mixed load takes a multiple of 16")


class ProfileFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Medians and ranges over the rounds under one profile. `gain`: tokens per second over those with the catalogue's
    own knobs in the same round, with its 95% interval; None of a single round. `failed`: requests without an answer."""

    profile: str
    figures: dict[str, Spread | None]
    gain: Spread | None
    failed: int


class ProfileResults(msgspec.Struct, frozen=True):
    profiles: list[ProfileFigures]


async def compare_profiles(
    target: CoreTarget,
    model: str,
    layout: KVLayout,
    options: ProfileOptions,
    measurement: Measurement,
    progress: Callable[[str], None] = lambda _: None,
) -> ProfileResults:
    """Measure what `measurement` lacks, every other round backwards, and finish it. Raises `CoreError`.

    A profile is set on the core that serves, as `aio knobs profile` does; its knobs of routing and of replicas have
    nothing to do here. What the model was started with is put back at the end.
    """
    watch = MemoryWatch(target, model, layout)
    start = (await watch.stats()).start
    run = LoadRun(target, options.timeout)
    await run.warm_up(mixed_jobs(options.seed + 500_000, 1))
    names = list(PROFILES)
    for turn in range(options.rounds):
        for name in names[::-1] if turn % 2 else names:
            if measurement.find(round=turn, profile=name) is None:
                progress(f"round {turn + 1}/{options.rounds}: {name}")
                await target.client.set_knobs(PROFILES[name].core_changes(start), model)
                jobs = mixed_jobs(options.seed + turn, options.requests)
                jobs = [replace(job, salt=f"round {turn}, {name}") for job in jobs]
                watch.running.clear()
                watch.kv_mb.clear()
                async with watch.sampling():
                    row = await load_row(run, Load({"profile": name}, jobs, options.concurrency), target.api)
                held = {
                    "running_mean": statistics.fmean(watch.running or [0.0]),
                    "kv_mb_mean": statistics.fmean(watch.kv_mb or [0.0]),
                    "kv_mb_most": max(watch.kv_mb, default=0.0),
                }
                measurement.add({"round": turn, **row, **held})
    await target.client.set_knobs(PROFILES[CATALOGUE].core_changes(start), model)
    results = results_of(measurement.rows)
    measurement.finish(msgspec.to_builtins(results))
    return results


def results_of(rows: Sequence[Row]) -> ProfileResults:
    """What the rows say, the profiles in their usual order."""
    base = {row["round"]: row["out_tok_s"] for row in rows if row["profile"] == CATALOGUE}
    found = []
    for name in PROFILES:
        chosen = [row for row in rows if row["profile"] == name]
        gains = [row["out_tok_s"] / base[row["round"]] for row in chosen if base.get(row["round"])]
        found.append(
            ProfileFigures(
                profile=name,
                figures={column: spread([row[column] for row in chosen]) for column in FIGURES},
                gain=geometric_interval(gains) if name != CATALOGUE and len(gains) > 1 else None,
                failed=sum(row["requests"] - row["ok"] for row in chosen),
            )
        )
    return ProfileResults(found)
