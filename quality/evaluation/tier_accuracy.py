"""Accuracy of each tier of a catalogue on the graded task set, and which tiers cost more than another tier without
being measurably better, by a stored measurement."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import TypeVar

import msgspec

from inference_core.io.files import atomic_file, prepare_types
from inference_core.protocol import SamplingParams
from quality.estimates.verified_sample import Share, wilson_interval
from quality.evaluation.task_set import Kind, Task, check, tasks
from quality.statistics import better_p_value
from tiers.catalog.catalog import Catalog
from tiers.catalog.tier_spec import ChainOfThoughtSpec, Price, TierSpec
from tiers.conversation import Turn
from tiers.deltas import CollectedChoice
from tiers.errors import TierError
from tiers.tier import FinishReason, GenerationRequest, Tier, Usage

Progress = Callable[[str, float], None]
Item = TypeVar("Item")
Answer = TypeVar("Answer")
Choice = TypeVar("Choice", bound=CollectedChoice)

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
    """One tier's results on all tasks. Token counts are sums as billed: reasoning and discarded samples are completion
    tokens.
    """

    tier: int
    name: str
    model: str
    policy: str
    accuracy: Share
    cells: list[Cell]
    correct: list[bool]
    """For each task of `tasks(seed, per_level)`, which are the same for all tiers, whether its answer was right."""
    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    mean_latency_seconds: float
    """From the request to the last token, with the report's `concurrency` requests in flight."""

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


prepare_types(AccuracyReport)


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
    for index, tier in enumerate(tiers):
        spec = catalog.tier(tier.number)

        def show(share: float, name: str = tier.name, index: int = index) -> None:
            progress(name, (index + share) / len(tiers))

        outcomes = await in_turn(asked, concurrency, partial(_answer, tier, spec), show)
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


async def in_turn(
    items: Sequence[Item],
    concurrency: int,
    answer: Callable[[int, Item], Awaitable[Answer]],
    show: Callable[[float], None] = lambda share: None,
) -> list[Answer]:
    """Return `answer(number, item)` of all `items`, in their order, `concurrency` at a time; `show` receives the share
    that is done. The first failure ends all and is raised."""
    answer_by_number: dict[int, Answer] = {}
    waiting = iter(enumerate(items))

    async def worker() -> None:
        for number, item in waiting:
            answer_by_number[number] = await answer(number, item)
            show(len(answer_by_number) / len(items))

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(worker())
    except ExceptionGroup as failures:
        first = failures.exceptions[0]
        raise first from first.__cause__
    return [answer_by_number[number] for number in range(len(items))]


async def _answer(tier: Tier, spec: TierSpec, number: int, task: Task) -> _Outcome:
    begun = time.perf_counter()
    try:
        answer = await ask(tier, spec, f"accuracy-{tier.number}-{number}", task.prompt)
    except TierMeasurementError as error:
        raise TierMeasurementError(f"a {task.kind} task of level {task.level}: {error}; nothing was stored") from error
    return _Outcome(right=check(task, answer.text), usage=answer.usage, seconds=time.perf_counter() - begun)


async def ask(tier: Tier, spec: TierSpec, request_id: str, prompt: str) -> Given:
    """Return the greedy answer of `tier` to `prompt` with the defaults of its `spec`. Raises `TierMeasurementError`."""
    answer = await collected(tier, question_request(spec, request_id, prompt), CollectedChoice())
    assert answer.usage is not None
    assert answer.finish_reason is not None
    return Given(text=answer.text, finish_reason=answer.finish_reason, usage=answer.usage)


def question_request(
    spec: TierSpec, request_id: str, prompt: str, temperature: float = 0.0, *, whole: bool = False
) -> GenerationRequest:
    """Return the request for an answer with the defaults of a tier's `spec`, at a `temperature`."""
    thinking = spec.policy.budget_tokens if isinstance(spec.policy, ChainOfThoughtSpec) else 0
    return GenerationRequest(
        request_id=request_id,
        messages=[Turn.of("user", prompt)],
        # Other sampling options matter to tiers that sample at any requested temperature (self-consistency).
        sampling=SamplingParams(**spec.sampling.given() | {"temperature": temperature}),
        # Room for the answer and all configured reasoning; a remote model knows its own limit.
        max_tokens=None if spec.remote is not None else ANSWER_TOKENS + thinking,
        whole=whole,
    )


async def collected(tier: Tier, request: GenerationRequest, answer: Choice) -> Choice:
    """Return `answer` with all that `tier` gives to `request`, its usage too. Raises `TierMeasurementError`."""
    try:
        async for delta in tier.generate(request):
            answer.take(delta)
    except TierError as error:
        raise TierMeasurementError(f"{tier.name} could not answer a question: {error}") from error
    if answer.usage is None or answer.finish_reason in (None, "error"):
        raise TierMeasurementError(f"{tier.name} could not answer a question: the answer broke off")
    return answer


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


LEVEL = 0.05
"""Significance level of "better": the largest probability of calling one of two equally good tiers better."""

REPORT_FILE = "tier_accuracy.json"


class ReportFileError(ValueError):
    """The stored measurement cannot be read. Measure again, or delete the file."""


class TierComparison(msgspec.Struct, frozen=True, kw_only=True):
    """A more expensive tier against a cheaper one on the same tasks."""

    dearer: int
    cheaper: int
    gains: int
    """Tasks that only the more expensive tier got right."""
    losses: int
    """Tasks that only the cheaper tier got right."""
    p_value: float
    """By the exact one-sided McNemar test (see `better_p_value`)."""
    better: bool
    """Whether `p_value` is below `LEVEL`."""
    cost_ratio: float | None
    """Ratio of mean costs; None if the cheaper tier is free."""


def mean_cost_usd(accuracy: TierAccuracy, price: Price) -> float:
    """Return the mean US dollars per task at `price`."""
    micro = price.input_usd_per_million * accuracy.prompt_tokens
    micro += price.output_usd_per_million * accuracy.completion_tokens
    return micro / 1e6 / accuracy.accuracy.total


def compare_tiers(report: AccuracyReport, catalog: Catalog) -> list[TierComparison]:
    """Compare every tier with every cheaper one at the catalogue's present prices; by the dearer, then the cheaper."""
    costs = {measured.tier: mean_cost_usd(measured, catalog.tier(measured.tier).price) for measured in report.tiers}
    by_cost = sorted(report.tiers, key=lambda measured: costs[measured.tier])
    comparisons = [
        _compare(cheap, dear, costs[cheap.tier], costs[dear.tier])
        for cheap, dear in combinations(by_cost, 2)
        if costs[dear.tier] > costs[cheap.tier]
    ]
    return sorted(comparisons, key=lambda comparison: (costs[comparison.dearer], costs[comparison.cheaper]))


def _compare(cheap: TierAccuracy, dear: TierAccuracy, cheap_cost: float, dear_cost: float) -> TierComparison:
    pairs = list(zip(dear.correct, cheap.correct, strict=True))
    gains, losses = pairs.count((True, False)), pairs.count((False, True))
    p_value = better_p_value(gains, losses)
    return TierComparison(
        dearer=dear.tier,
        cheaper=cheap.tier,
        gains=gains,
        losses=losses,
        p_value=p_value,
        better=p_value < LEVEL,
        cost_ratio=dear_cost / cheap_cost if cheap_cost > 0 else None,
    )


def overpriced_tiers(comparisons: list[TierComparison]) -> list[TierComparison]:
    """Return one comparison per tier that is not better than every cheaper tier: with the cheapest it does not beat.

    A tier must beat all cheaper ones, each at `LEVEL` (an intersection-union test, Berger 1982), so that many
    comparisons do not raise the chance of a false "better".
    """
    first: dict[int, TierComparison] = {}
    for comparison in comparisons:
        if not comparison.better:
            first.setdefault(comparison.dearer, comparison)
    return list(first.values())


def warning_of(comparison: TierComparison, tasks: int) -> str:
    """Return one line for the operator who pays for the dearer tier."""
    times = "more than" if comparison.cost_ratio is None else f"{comparison.cost_ratio:.3g} times"
    return (
        f"tier {comparison.dearer} costs {times} tier {comparison.cheaper} and was not measurably better "
        f"on {tasks} tasks (p = {comparison.p_value:.2g}): paying for it buys nothing"
    )


def warnings_of(report: AccuracyReport, catalog: Catalog) -> list[str]:
    """Return a line for each tier of `catalog` that is overpriced by `report`."""
    return [
        warning_of(comparison, report.tiers[0].accuracy.total)
        for comparison in overpriced_tiers(compare_tiers(report, catalog))
    ]


def store_report(folder: Path, report: AccuracyReport) -> Path:
    """Replace the report in the data folder by `report`; return the file."""
    path = folder / REPORT_FILE
    with atomic_file(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(report), indent=1))
    return path


def stored_report(folder: Path, catalog: Catalog) -> AccuracyReport | None:
    """Return the measurement in the data folder; None unless its tiers match `catalog`'s.

    Raises `ReportFileError` for a file that is not such a report.
    """
    path = folder / REPORT_FILE
    try:
        report = msgspec.json.decode(path.read_bytes(), type=AccuracyReport)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise ReportFileError(f"{path} cannot be read ({error}); run `aio bench tiers` again, or delete it") from error
    if report.fingerprint != catalog.fingerprint:
        return None
    if [tier.tier for tier in report.tiers] != [tier.number for tier in catalog.tiers] or not _same_tasks(report):
        raise ReportFileError(f"{path} does not say the same tasks of every tier; run `aio bench tiers` again")
    return report


def _same_tasks(report: AccuracyReport) -> bool:
    counts = {n for tier in report.tiers for n in (len(tier.correct), tier.accuracy.total)}
    return len(counts) == 1 and counts != {0}
