"""What a benchmark sends and when: seeded prompts, closed loops, Poisson arrivals and recorded traces. The fields of
`BenchOptions` are options of `aio bench core`.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.base.field_types import Count, ExistingFile, Positive, Whole
from gateway.planning.capacity.workload import read_trace


class BenchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A trace if there is one, else Poisson arrivals at each `rate`, else a closed loop at each `concurrency`.

    Lengths are in words of the prompt (about one token each) and in tokens of the answer. Raises `ValueError`.
    """

    concurrency: Annotated[tuple[Count, ...], Meta(title="N...")] = (1, 8, 32)
    """Closed loop: requests in flight."""
    rate: Annotated[tuple[Positive, ...], Meta(title="R...")] = ()
    """Open loop: Poisson arrivals per second."""
    trace: ExistingFile | None = None
    """Replay a CSV or JSONL file."""
    prompt_tokens: Count = 128
    """Words per prompt, about one token each."""
    output_tokens: Count = 64
    """Tokens of an answer."""
    shared_prefix: Whole = 0
    """Words in front of every prompt, all the same."""
    rounds: Count = 3
    """Closed loop: requests per unit of concurrency."""
    requests: Whole = 0
    """Requests per row: the minimum, or the maximum for a trace."""
    duration: Positive = 30.0
    """Seconds of arrivals at a rate."""
    trace_speed: Positive = 1.0
    """Speed of a trace's replay: 2 is twice as fast."""
    trace_unit: Literal["s", "ms"] = "s"
    """Unit of the trace's times."""
    max_prompt: Whole = 0
    """Cut the prompts of a trace to this many words. 0 leaves them whole."""
    seed: int = 7
    """Seed of the prompts and of the arrivals."""
    warmup: Whole = 2
    """Requests before the first row."""
    timeout: Positive = 300.0
    """Seconds for one request."""
    slo_ttft_ms: Positive | None = None
    """Objective for the time to the first token in milliseconds. It adds columns of goodput."""
    slo_itl_ms: Positive | None = None
    """Objective for the mean time per later token in milliseconds."""

    def __post_init__(self) -> None:
        if not (self.concurrency or self.rate or self.trace):
            raise ValueError("there is no load; give a concurrency, a rate or a trace")


# These words in this order, with the draws below, make the prompts that the load generators of other servers
# send for the same seed, so that rows can be set side by side.
_WORD_LIST = (
    "time year people way day man thing woman life child world school state family student group country problem "
    "hand part place case week company system program question work government number night point home water room "
    "mother area money story fact month lot right study book eye job word business issue side kind head house "
    "service friend father power hour game line end member law car city community name president team minute idea "
    "body information back parent face others level office door health person art war history party result change "
    "morning reason research girl guy moment air teacher force education"
)
WORDS = _WORD_LIST.split()


@dataclass(frozen=True, slots=True)
class Job:
    """One request."""

    prompt: str
    output_tokens: int
    due: float | None = None
    """Seconds after the load began; None for a closed loop."""
    limit: int | None = None
    """The longest answer that its sender would have asked for, not knowing how long it turns out."""
    salt: str = "bench"
    """Jobs with different salts share no cached prefix; only for a core in this process."""


@dataclass(frozen=True, slots=True)
class Load:
    """One row to measure: its first columns, its jobs, and how many may be in flight (None: as they fall due)."""

    columns: dict[str, Any]
    jobs: list[Job]
    concurrency: int | None = None


class Prompts:
    """Seeded prompts, distinct from each other but for `shared_prefix` words in front."""

    def __init__(self, seed: int, shared_prefix: int) -> None:
        self._random = random.Random(seed)
        self._prefix = " ".join(random.Random(1).choices(WORDS, k=shared_prefix))

    def draw(self, words: int) -> str:
        text = " ".join(self._random.choices(WORDS, k=max(1, words)))
        return f"{self._prefix} {text}" if self._prefix else text


def warmup_jobs(options: BenchOptions, prompts: Prompts) -> list[Job]:
    return jobs_of(prompts, options.warmup, options.prompt_tokens, options.output_tokens)


def jobs_of(prompts: Prompts, count: int, prompt_tokens: int, output_tokens: int) -> list[Job]:
    """`count` jobs of one size for a closed loop."""
    return [Job(prompts.draw(prompt_tokens), output_tokens) for _ in range(count)]


def loads(options: BenchOptions, prompts: Prompts) -> Iterator[Load]:
    """The loads of `options`, one row each. Raises `TraceError`."""
    if options.trace is not None:
        columns = {"trace": options.trace.name, "speed": options.trace_speed}
        yield Load(columns, list(_trace_jobs(options.trace, options, prompts)))
        return
    for rate in options.rate:
        yield Load({"rate": rate}, _poisson_jobs(options, prompts, rate))
    for concurrency in () if options.rate else options.concurrency:
        count = max(options.requests, concurrency * options.rounds)
        jobs = jobs_of(prompts, count, options.prompt_tokens, options.output_tokens)
        yield Load({"concurrency": concurrency}, jobs, concurrency)


def _poisson_jobs(options: BenchOptions, prompts: Prompts, rate: float) -> list[Job]:
    """Arrivals with exponential gaps of mean 1/rate, the first at once."""
    gaps = random.Random(f"{options.seed} {rate}")
    count = options.requests or max(1, round(rate * options.duration))
    due, jobs = 0.0, []
    for job in jobs_of(prompts, count, options.prompt_tokens, options.output_tokens):
        jobs.append(Job(job.prompt, job.output_tokens, due))
        due += gaps.expovariate(rate)
    return jobs


def _trace_jobs(path: Path, options: BenchOptions, prompts: Prompts) -> list[Job]:
    jobs = []
    for arrival in read_trace(path, options.trace_unit, options.requests):
        words = arrival.prompt_tokens
        words = min(words, options.max_prompt) if options.max_prompt else words
        jobs.append(Job(prompts.draw(words), arrival.output_tokens, arrival.at / options.trace_speed))
    return jobs
