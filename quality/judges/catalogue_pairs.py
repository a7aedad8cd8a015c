"""Pairs of answers by a catalogue's own tiers to questions with known correct answers."""

import asyncio
from collections.abc import Callable, Sequence

from quality.evaluation.collect_outcomes import Question, is_right
from quality.evaluation.tier_accuracy import Given, ask
from quality.judges.calibration import GradedPair
from tiers.catalog.catalog import Catalog
from tiers.tier import Tier

Progress = Callable[[str, float], None]


async def answered_pairs(
    tiers: Sequence[Tier],
    catalog: Catalog,
    questions: Sequence[Question],
    *,
    concurrency: int,
    progress: Progress = lambda stage, share: None,
) -> list[GradedPair]:
    """Ask each of the started `tiers`, cheapest first, every question; pair each answer with the strongest tier's.

    An answer is no worse if it is right or the strongest tier's is wrong (docs/classifier.md). As in verification,
    empty and truncated answers make no pair. Raises `TierMeasurementError`.
    """
    given: list[list[Given]] = []
    for place, tier in enumerate(tiers):
        progress(tier.name, place / len(tiers))
        given.append(await _answers(tier, catalog, questions, concurrency))
    pairs: list[GradedPair] = []
    for answers in given[:-1]:
        for question, answer, reference in zip(questions, answers, given[-1], strict=True):
            if _is_whole(answer) and _is_whole(reference):
                no_worse = is_right(question, answer.text) or not is_right(question, reference.text)
                pairs.append(
                    GradedPair(
                        prompt=question.prompt, answer=answer.text, reference_answer=reference.text, no_worse=no_worse
                    )
                )
    return pairs


async def _answers(tier: Tier, catalog: Catalog, questions: Sequence[Question], concurrency: int) -> list[Given]:
    gate = asyncio.Semaphore(concurrency)
    spec = catalog.tier(tier.number)

    async def one(number: int, question: Question) -> Given:
        async with gate:
            return await ask(tier, spec, f"calibration-{tier.number}-{number}", question.prompt)

    try:
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(one(number, question)) for number, question in enumerate(questions)]
    except ExceptionGroup as failures:
        first = failures.exceptions[0]
        raise first from first.__cause__
    return [task.result() for task in asked]


def _is_whole(given: Given) -> bool:
    return given.finish_reason == "stop" and bool(given.text.strip())
