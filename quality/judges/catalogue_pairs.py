"""Pairs of answers by a catalogue's own tiers to questions with known correct answers."""

from collections.abc import Callable, Sequence
from functools import partial

from quality.evaluation.collect_outcomes import Question, is_right
from quality.evaluation.tier_accuracy import Given, ask, in_turn
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
    answers_by_tier: list[list[Given]] = []
    for index, tier in enumerate(tiers):
        progress(tier.name, index / len(tiers))
        answers_by_tier.append(await in_turn(questions, concurrency, partial(_answer, tier, catalog)))
    pairs: list[GradedPair] = []
    for answers in answers_by_tier[:-1]:
        for question, answer, reference in zip(questions, answers, answers_by_tier[-1], strict=True):
            if _is_whole(answer) and _is_whole(reference):
                no_worse = is_right(question, answer.text) or not is_right(question, reference.text)
                pairs.append(
                    GradedPair(
                        prompt=question.prompt, answer=answer.text, reference_answer=reference.text, no_worse=no_worse
                    )
                )
    return pairs


async def _answer(tier: Tier, catalog: Catalog, number: int, question: Question) -> Given:
    return await ask(tier, catalog.tier(tier.number), f"calibration-{tier.number}-{number}", question.prompt)


def _is_whole(answer: Given) -> bool:
    return answer.finish_reason == "stop" and bool(answer.text.strip())
