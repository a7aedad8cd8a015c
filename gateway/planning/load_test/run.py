"""Runs loads against a target (a core in this process, or a server over HTTP) and times every answer; from single
requests to one row of figures: percentiles, throughput, goodput, errors. A core's model is opened for a measurement
alone in this process, on a thread of its own.
"""

import asyncio
import contextlib
import math
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import msgspec

from gateway.planning.load_test.workload import BenchOptions, Job, Load, Prompts, loads, warmup_jobs
from inference_core.errors import CoreError, CoreGoneError, ModelFileError
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.model_spec import CoreSpec, ModelSpec
from inference_core.protocol import AddRequest, Knobs, SamplingParams, SequenceOutput
from inference_core.tokenization.load_tokenizer import load_tokenizer
from inference_core.transport.client import CoreClient
from inference_core.transport.core_thread import ThreadCoreClient


@dataclass(slots=True)
class Timing:
    """One request as its sender saw it; seconds since it was due."""

    asked: int
    ttft: float | None = None
    gaps: list[float] = field(default_factory=list)
    """Seconds between one output and the next."""
    e2e: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    has_usage: bool = False
    error: str | None = None

    @property
    def seconds_per_later_token(self) -> float | None:
        return sum(self.gaps) / (self.output_tokens - 1) if self.gaps and self.output_tokens > 1 else None

    def note_text(self, now: float, due: float, last: float) -> float:
        """Text came at `now`, the last before it at `last`; returns `now`, the next call's `last`."""
        if self.ttft is None:
            self.ttft = now - due
        else:
            self.gaps.append(now - last)
        return now

    def is_good(self, options: BenchOptions) -> bool:
        """Answered within the objectives for the first token and for the mean time per later one."""
        if self.error is not None or self.ttft is None:
            return False
        if options.slo_ttft_ms and self.ttft * 1e3 > options.slo_ttft_ms:
            return False
        later = self.seconds_per_later_token
        return not (options.slo_itl_ms and later and later * 1e3 > options.slo_itl_ms)


def percentile(values: Iterable[float], q: float) -> float | None:
    """Nearest-rank percentile; None of nothing."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)] if ordered else None


def summary(
    load: dict[str, Any], timings: list[Timing], wall: float, options: BenchOptions, notes: dict[str, Any]
) -> dict[str, Any]:
    """One row: the load's columns, the figures (milliseconds and tokens per second), the notes; rounded."""
    done = [timing for timing in timings if timing.error is None]
    output, prompt = sum(t.output_tokens for t in done), sum(t.prompt_tokens for t in done)
    row: dict[str, Any] = {
        **load,
        "requests": len(timings),
        "ok": len(done),
        "errors": dict(Counter(t.error for t in timings if t.error is not None)),
        "wall_s": wall,
        "out_tok_s": output / wall,
        "total_tok_s": (output + prompt) / wall,
        "req_s": len(done) / wall,
        **_spread("ttft", [t.ttft for t in done if t.ttft is not None]),
        **_spread("itl", [gap for t in done for gap in t.gaps]),
        **_spread("e2e", [t.e2e for t in done]),
    }
    if options.slo_ttft_ms or options.slo_itl_ms:
        good = sum(timing.is_good(options) for timing in timings)
        row |= {"goodput_req_s": good / wall, "good_fraction": good / len(timings)}
    row |= {
        "mean_prompt": prompt / len(done) if prompt else None,
        "mean_output": output / len(done) if done else None,
        "short_answers": sum(t.output_tokens < t.asked for t in done),
        "no_usage": sum(not t.has_usage for t in done),
        **notes,
    }
    return {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()}


def _spread(name: str, seconds: list[float]) -> dict[str, float | None]:
    p50, p90, p99 = (percentile(seconds, q) for q in (0.5, 0.9, 0.99))
    row = {
        f"{name}_{label}_ms": None if p is None else p * 1e3 for label, p in (("p50", p50), ("p90", p90), ("p99", p99))
    }
    return row | {f"{name}_p99_over_p50": p99 / p50 if p50 and p99 is not None else None}


def row_text(row: dict[str, Any]) -> str:
    """A row for people: `column=value` pairs on one line."""
    return "  ".join(f"{name}={_short(value)}" for name, value in row.items())


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.{1 if abs(value) >= 10 else 3}f}"
    return str(value)


class AskError(Exception):
    """An answer that did not come: `kind` is counted, the message is for people."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class BenchTarget(ABC):
    """Contract: `ask` sends one greedy request whose answer has its full length and notes its times as they happen.
    `due` is when the request should have been sent, on `time.perf_counter()`.
    """

    api: str
    """The name of the target in its rows."""

    @abstractmethod
    async def ask(self, job: Job, due: float, timing: Timing) -> None:
        """Fill in `timing` but for its end and its error. Raises `AskError`."""


class Encoder(Protocol):
    """The part of a tokeniser that a benchmark needs."""

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]: ...


class CoreTarget(BenchTarget):
    """A model of a core in this process. Tokenising the prompt counts into the times, as it does for any server."""

    api = "in-process"

    def __init__(self, client: CoreClient, tokenizer: Encoder, model: str) -> None:
        self.client = client
        self._tokenizer = tokenizer
        self._model = model
        self._numbers = count()

    def count_tokens(self, prompt: str) -> int:
        return len(self._tokenizer.encode(prompt, add_special_tokens=True))

    def _request(self, job: Job) -> AddRequest:
        return AddRequest(
            request_id=f"bench-{next(self._numbers)}",
            model=self._model,
            prompt_token_ids=self._tokenizer.encode(job.prompt, add_special_tokens=True),
            sampling=SamplingParams(temperature=0.0, max_tokens=job.output_tokens, ignore_eos=True),
            arrival=time.monotonic(),
            salt=job.salt,
        )

    async def ask(self, job: Job, due: float, timing: Timing) -> None:
        last = due
        try:
            async with contextlib.aclosing(self.client.generate(self._request(job))) as outputs:
                async for output in outputs:
                    last = _note(output, due, last, timing)
        except CoreGoneError as error:
            raise AskError("core gone", str(error)) from error
        except CoreError as error:
            raise AskError("refused", str(error)) from error


def _note(output: SequenceOutput, due: float, last: float, timing: Timing) -> float:
    """Take in one output; returns when text last came."""
    if output.token_ids:
        last = timing.note_text(time.perf_counter(), due, last)
        timing.output_tokens += len(output.token_ids)
    if output.finish_reason == "error":
        raise AskError(output.error_kind or "internal", output.error or "")
    if output.finish_reason is not None:
        timing.prompt_tokens, timing.has_usage = output.prompt_tokens, output.completion_tokens > 0
        timing.output_tokens = output.completion_tokens or timing.output_tokens
    return last


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


def model_of(core: CoreSpec, name: str | None) -> ModelSpec:
    """The model `name` of `core`, or its first. Raises `ModelFileError`."""
    for spec in core.models:
        if name in (None, spec.name):
            return spec
    names = ", ".join(spec.name for spec in core.models) or "none"
    raise ModelFileError(f"the core has no model {name!r}; it has {names}")


@asynccontextmanager
async def core_target(
    core: CoreSpec, spec: ModelSpec, cache_dir: Path, knobs: Knobs | None = None, *, draft: ModelSpec | None = None
) -> AsyncIterator[CoreTarget]:
    """`spec`, with its `draft` or alone, on a core with the arena and threads of `core`. Raises as `load_core`."""
    from inference_core.loading.load_core import load_core

    models = [msgspec.structs.replace(spec, draft=None)] if draft is None else [spec, draft]
    alone = msgspec.structs.replace(core, models=models)
    client = ThreadCoreClient(lambda: load_core(alone, cache_dir, knobs=knobs))
    await client.start()
    try:
        yield CoreTarget(client, load_tokenizer(resolve_model_path(spec.path)), spec.name)
    finally:
        await client.close()
