"""Runs loads against a target and times every answer."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.planning.load_test.options import BenchOptions
from gateway.planning.load_test.report import Timing, summary
from gateway.planning.load_test.target import AskError, BenchTarget
from gateway.planning.load_test.workload import Job, Load, Prompts, loads, warmup_jobs
from inference_core.errors import CoreError


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a row is; reported after every request."""

    label: str
    done: int
    total: int
    errors: int
    output_tokens: int
    seconds: float


ProgressHook = Callable[[Progress], None]


async def run_bench(
    target: BenchTarget, options: BenchOptions, progress: ProgressHook = lambda _: None
) -> AsyncIterator[dict[str, Any]]:
    """Measure `target`; one row per load as it is done (columns: see `report.summary`).

    Answers are greedy and of full length. Times of open loops count from when a request was due, so that a slow
    target hides nothing. The whole load is built before the first request. Raises `TraceError` for a bad trace and
    `CoreError` if the warm-up fails.
    """
    prompts = Prompts(options.seed, options.shared_prefix)
    notes = {"api": target.api, "busy_before": await busy_share(), "ignore_eos": True}
    load_run = LoadRun(target, options.timeout)
    await load_run.warm_up(warmup_jobs(options, prompts))
    for load in loads(options, prompts):
        began = time.perf_counter()
        timings = await load_run.measured(load, progress)
        yield summary(load.columns, timings, time.perf_counter() - began, options, notes)


class LoadRun:
    """One target under load; `timeout` is in seconds for one request."""

    def __init__(self, target: BenchTarget, timeout: float) -> None:
        self._target = target
        self._timeout = timeout
        self._last_error = ""

    async def warm_up(self, jobs: list[Job]) -> None:
        """Ask `jobs` one after another. Raises `CoreError` with what the target said if one fails."""
        for job in jobs:
            timing = await self.timed(job, time.perf_counter())
            if timing.error is not None:
                raise CoreError(f"warm-up: {self._last_error or timing.error}")

    async def measured(self, load: Load, progress: ProgressHook = lambda _: None) -> list[Timing]:
        """Every job of a load, at its concurrency or as it falls due, in the order in which they ended."""
        label = " ".join(f"{name}={value}" for name, value in load.columns.items())
        timings: list[Timing] = []
        began = time.perf_counter()

        def note(timing: Timing) -> None:
            timings.append(timing)
            errors, tokens = sum(t.error is not None for t in timings), sum(t.output_tokens for t in timings)
            progress(Progress(label, len(timings), len(load.jobs), errors, tokens, time.perf_counter() - began))

        async def worker(queue: list[Job]) -> None:
            while queue:
                note(await self.timed(queue.pop(), time.perf_counter()))

        async def at(job: Job, due: float) -> None:
            await asyncio.sleep(due - time.perf_counter())
            note(await self.timed(job, due))

        async with asyncio.TaskGroup() as group:
            if load.concurrency is not None:
                queue = load.jobs[::-1]
                for _ in range(load.concurrency):
                    group.create_task(worker(queue))
            else:
                for job in load.jobs:
                    group.create_task(at(job, began + (job.due or 0.0)))
        return timings

    async def timed(self, job: Job, due: float) -> Timing:
        """One answer with its times; what goes wrong becomes part of the timing."""
        timing = Timing(asked=job.output_tokens)
        try:
            async with asyncio.timeout(self._timeout):
                await self._target.ask(job, due, timing)
            timing.e2e = time.perf_counter() - due
        except TimeoutError:
            timing.error = "timeout"
        except AskError as error:
            timing.error, self._last_error = error.kind, str(error)
        return timing


async def busy_share(seconds: float = 0.5) -> float | None:
    """Share of all CPU time in use over the next `seconds`: what others take before a load. None off Linux."""
    try:
        before = _cpu_ticks()
        await asyncio.sleep(seconds)
        after = _cpu_ticks()
    except OSError:
        return None
    return 1 - (after[1] - before[1]) / max(1, after[0] - before[0])


def _cpu_ticks() -> tuple[int, int]:
    """(all, idle) clock ticks of the machine since it started."""
    ticks = [int(number) for number in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(ticks), ticks[3] + ticks[4]
