"""Accuracy of each tier of a catalogue on the graded task set."""

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import msgspec

from inference_core.protocol import SamplingParams
from quality.estimates.upgrade_rate import Share, wilson_interval
from quality.evaluation.task_set import Kind, Task, check, tasks
from tiers.catalog.catalog import Catalog
from tiers.catalog.tier_spec import ChainOfThoughtSpec, TierSpec
from tiers.collected_choice import CollectedChoice
from tiers.errors import TierError
from tiers.tier import ChatMessage, FinishReason, GenerationRequest, Tier, Usage

Progress = Callable[[str, float], None]

# Three times the longest correct answer (a copy of ten words); longer answers are cut off.
ANSWER_TOKENS = 64


class TierMeasurementError(RuntimeError):
    """A tier could not answer a task. Repair the tier and measure again: a partial accuracy is not comparable."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """Correct answers to the tasks of one kind and level."""

    kind: Kind
    level: int
    right: Share


class TierAccuracy(msgspec.Struct, frozen=True, kw_only=True):
    """One tier's results on all tasks.

    `correct[i]` belongs to the i-th task of `tasks(seed, per_level)`, the same for all tiers. Token counts are sums as
    billed: reasoning and discarded samples are completion tokens. `mean_latency_seconds` runs from the request to the
    last token with the report's `concurrency` requests in flight.
    """

    tier: int
    name: str
    model: str
    policy: str
    accuracy: Share
    cells: list[Cell]
    correct: list[bool]
    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    mean_latency_seconds: float

    def of_kind(self, kind: Kind) -> Share:
        """Return the correct answers to the tasks of one kind over all levels."""
        cells = [cell.right for cell in self.cells if cell.kind == kind]
        return wilson_interval(sum(right.count for right in cells), sum(right.total for right in cells))


class AccuracyReport(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement of all tiers of a catalogue, valid for every catalogue with this `fingerprint`, at any prices."""

    catalog: str
    fingerprint: str
    measured_at: datetime
    seed: int
    per_level: int
    concurrency: int
    tiers: list[TierAccuracy]


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """A tier's answer to a question, its finish reason and its usage."""

    text: str
    finish_reason: FinishReason
    usage: Usage


class _Outcome(msgspec.Struct, frozen=True, kw_only=True):
    right: bool
    usage: Usage
    seconds: float


async def measure_tiers(
    tiers: Sequence[Tier], catalog: Catalog, *, seed: int, per_level: int, concurrency: int, progress: Progress
) -> AccuracyReport:
    """Ask `tasks(seed, per_level)` to each of the started `tiers`, one tier after another, `concurrency` at a time.

    Each tier uses its own sampling defaults, but temperature 0, so that results are reproducible; a tier that draws
    several samples seeds them itself. `progress` receives the tier's name and the share of all work done. Raises
    `TierMeasurementError`, and `ValueError` if the task set has fewer tasks.
    """
    asked = tasks(seed, per_level)
    measured: list[TierAccuracy] = []
    for place, tier in enumerate(tiers):
        spec = catalog.tier(tier.number)

        def show(share: float, name: str = tier.name, place: int = place) -> None:
            progress(name, (place + share) / len(tiers))

        outcomes = await _answers(tier, spec, asked, concurrency, show)
        measured.append(_accuracy(tier, spec, asked, outcomes))
    return AccuracyReport(
        catalog=catalog.name,
        fingerprint=catalog.fingerprint,
        measured_at=datetime.now(UTC),
        seed=seed,
        per_level=per_level,
        concurrency=concurrency,
        tiers=measured,
    )


async def _answers(
    tier: Tier, spec: TierSpec, asked: list[Task], concurrency: int, show: Callable[[float], None]
) -> list[_Outcome]:
    """Return one outcome per task, in order."""
    outcomes: dict[int, _Outcome] = {}
    waiting = iter(enumerate(asked))

    async def worker() -> None:
        for number, task in waiting:
            outcomes[number] = await _answer(tier, spec, number, task)
            show(len(outcomes) / len(asked))

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(worker())
    except ExceptionGroup as failures:
        first = failures.exceptions[0]
        raise first from first.__cause__
    return [outcomes[number] for number in range(len(asked))]


async def _answer(tier: Tier, spec: TierSpec, number: int, task: Task) -> _Outcome:
    begun = time.perf_counter()
    try:
        given = await ask(tier, spec, f"accuracy-{tier.number}-{number}", task.prompt)
    except TierMeasurementError as error:
        raise TierMeasurementError(f"a {task.kind} task of level {task.level}: {error}; nothing was stored") from error
    return _Outcome(right=check(task, given.text), usage=given.usage, seconds=time.perf_counter() - begun)


async def ask(tier: Tier, spec: TierSpec, request_id: str, prompt: str) -> Given:
    """Return the greedy answer of `tier` to `prompt` with the defaults of its `spec`. Raises `TierMeasurementError`."""
    request = GenerationRequest(
        request_id=request_id,
        messages=[ChatMessage(role="user", content=prompt)],
        # Other sampling options matter to tiers that sample at any requested temperature (self-consistency).
        sampling=SamplingParams(**spec.sampling.given() | {"temperature": 0.0}),
        max_tokens=_max_tokens(spec),
    )
    answer = CollectedChoice()
    try:
        async for delta in tier.generate(request):
            answer.take(delta)
    except TierError as error:
        raise TierMeasurementError(f"{tier.name} could not answer a question: {error}") from error
    if answer.usage is None or answer.finish_reason is None or answer.finish_reason == "error":
        raise TierMeasurementError(f"{tier.name} could not answer a question: the answer broke off")
    return Given(text=answer.text, finish_reason=answer.finish_reason, usage=answer.usage)


def _max_tokens(spec: TierSpec) -> int | None:
    """Return a limit with room for the answer and all configured reasoning; a remote model knows its own limit."""
    if spec.remote is not None:
        return None
    thinking = spec.policy.budget_tokens if isinstance(spec.policy, ChainOfThoughtSpec) else 0
    return ANSWER_TOKENS + thinking


def _accuracy(tier: Tier, spec: TierSpec, asked: list[Task], outcomes: list[_Outcome]) -> TierAccuracy:
    right: dict[tuple[Kind, int], list[bool]] = {}
    for task, outcome in zip(asked, outcomes, strict=True):
        right.setdefault((task.kind, task.level), []).append(outcome.right)
    correct = [outcome.right for outcome in outcomes]
    return TierAccuracy(
        tier=tier.number,
        name=tier.name,
        model=spec.served_name,
        policy=str(type(spec.policy).__struct_config__.tag),
        accuracy=wilson_interval(sum(correct), len(correct)),
        cells=[
            Cell(kind=kind, level=level, right=wilson_interval(sum(cell), len(cell)))
            for (kind, level), cell in sorted(right.items())
        ],
        correct=correct,
        prompt_tokens=sum(outcome.usage.prompt_tokens for outcome in outcomes),
        completion_tokens=sum(outcome.usage.completion_tokens for outcome in outcomes),
        reasoning_tokens=sum(outcome.usage.reasoning_tokens for outcome in outcomes),
        mean_latency_seconds=sum(outcome.seconds for outcome in outcomes) / len(outcomes),
    )
