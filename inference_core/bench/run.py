"""Runs loads against a core and times every answer."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from inference_core.bench.options import BenchOptions
from inference_core.bench.report import Timing, summary
from inference_core.bench.workload import Job, Load, Prompts, loads, warmup_jobs
from inference_core.client import CoreClient
from inference_core.errors import CoreError, CoreGoneError
from inference_core.protocol import AddRequest, SamplingParams


class Encoder(Protocol):
    """The part of a tokeniser that a benchmark needs."""

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a row is; reported after every request."""

    label: str
    done: int
    total: int
    errors: int
    output_tokens: int
    seconds: float


async def run_bench(
    client: CoreClient,
    tokenizer: Encoder,
    model: str,
    options: BenchOptions,
    progress: Callable[[Progress], None] = lambda _: None,
) -> AsyncIterator[dict[str, Any]]:
    """Measure `model` on a started `client`; one row per load as it is done (columns: see `report.summary`).

    Answers are greedy and of full length (`ignore_eos`); tokenising counts into the times, as it does for a server.
    Times of open loops count from when a request was due, so that a slow core hides nothing. The whole load is
    built before the first request. Raises `TraceError` for a bad trace and `CoreError` if the warm-up fails.
    """
    prompts = Prompts(options.seed, options.shared_prefix)
    notes = {"api": "in-process", "busy_before": await busy_share(), "ignore_eos": True}
    bench = _Bench(client, tokenizer, model, options)
    for job in warmup_jobs(options, prompts):
        timing = await bench.timed(job, time.perf_counter())
        if timing.error is not None:
            raise CoreError(f"warm-up: {bench.last_error or timing.error}")
    for load in loads(options, prompts):
        began = time.perf_counter()
        timings = await bench.measured(load, progress)
        yield summary(load.columns, timings, time.perf_counter() - began, options, notes)


class _Bench:
    """One client and model under load."""

    def __init__(self, client: CoreClient, tokenizer: Encoder, model: str, options: BenchOptions) -> None:
        self._client = client
        self._tokenizer = tokenizer
        self._model = model
        self._timeout = options.timeout
        self._numbers = count()
        self.last_error: str | None = None

    async def measured(self, load: Load, progress: Callable[[Progress], None]) -> list[Timing]:
        """Every job of a load, at its concurrency or as it falls due."""
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
                await self._ask(job, due, timing)
        except TimeoutError:
            timing.error = "timeout"
        except CoreGoneError as error:
            timing.error, self.last_error = "core gone", str(error)
        except CoreError as error:
            timing.error, self.last_error = "refused", str(error)
        return timing

    async def _ask(self, job: Job, due: float, timing: Timing) -> None:
        request = AddRequest(
            request_id=f"bench-{next(self._numbers)}",
            model=self._model,
            prompt_token_ids=self._tokenizer.encode(job.prompt, add_special_tokens=True),
            sampling=SamplingParams(temperature=0.0, max_tokens=job.output_tokens, ignore_eos=True),
            arrival=time.monotonic(),
            salt="bench",
        )
        last = due
        async with contextlib.aclosing(self._client.generate(request)) as outputs:
            async for output in outputs:
                now = time.perf_counter()
                if output.token_ids:
                    if timing.ttft is None:
                        timing.ttft = now - due
                    else:
                        timing.gaps.append(now - last)
                    last = now
                    timing.output_tokens += len(output.token_ids)
                if output.finish_reason == "error":
                    timing.error, self.last_error = output.error_kind or "internal", output.error
                elif output.finish_reason is not None:
                    timing.prompt_tokens, timing.has_usage = output.prompt_tokens, output.completion_tokens > 0
                    timing.output_tokens = output.completion_tokens or timing.output_tokens
        timing.e2e = time.perf_counter() - due


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
