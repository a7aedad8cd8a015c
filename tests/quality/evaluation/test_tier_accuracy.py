"""Measuring tiers: every tier gets every task, right answers are counted, and a broken tier stores nothing."""

from collections.abc import Callable

import pytest

from quality.evaluation.task_set import Task, tasks
from quality.evaluation.tier_accuracy import ANSWER_TOKENS, AccuracyReport, TierMeasurementError, measure_tiers
from tests.quality.evaluation.knowing_tier import KnowingTier
from tiers.catalog.load import load_catalog
from tiers.errors import TierUnavailableError

SEED, PER_LEVEL = 3, 2
LAPTOP = load_catalog("laptop")
KNOWS: tuple[Callable[[Task], bool], ...] = (
    lambda task: task.kind == "copy",
    lambda task: task.kind in ("copy", "spell"),
    lambda task: task.level <= 2,
    lambda task: True,
)


def knowing_tiers() -> list[KnowingTier]:
    return [KnowingTier(n, knows, seed=SEED, per_level=PER_LEVEL) for n, knows in enumerate(KNOWS, start=1)]


async def measured(tiers: list[KnowingTier], concurrency: int = 3) -> AccuracyReport:
    return await measure_tiers(
        tiers, LAPTOP, seed=SEED, per_level=PER_LEVEL, concurrency=concurrency, progress=lambda stage, share: None
    )


async def test_every_tier_answers_every_task_once_and_only_so_many_at_a_time() -> None:
    tiers = knowing_tiers()

    await measured(tiers, concurrency=3)

    prompts = sorted(task.prompt for task in tasks(SEED, PER_LEVEL))
    for tier in tiers:
        assert sorted(request.messages[0].text for request in tier.requests if request.messages) == prompts
        assert tier.most_at_once == 3


async def test_right_answers_are_counted_by_tier_kind_and_level() -> None:
    report = await measured(knowing_tiers())

    assert [(tier.accuracy.count, tier.accuracy.total) for tier in report.tiers] == [
        (10, 40), (20, 40), (16, 40), (40, 40)
    ]  # fmt: skip
    assert report.tiers[1].of_kind("spell").count == report.tiers[1].of_kind("spell").total == 10
    assert report.tiers[1].of_kind("compare").count == 0
    right = {(cell.kind, cell.level): (cell.right.count, cell.right.total) for cell in report.tiers[2].cells}
    assert right == {(task.kind, task.level): (2 if task.level <= 2 else 0, 2) for task in tasks(SEED, PER_LEVEL)}


async def test_answers_stand_in_the_order_of_the_tasks_so_that_tiers_can_be_paired() -> None:
    report = await measured(knowing_tiers())

    for tier, knows in zip(report.tiers, KNOWS, strict=True):
        assert tier.correct == [knows(task) for task in tasks(SEED, PER_LEVEL)]


async def test_only_the_answer_is_checked_and_all_tokens_are_summed() -> None:
    # Every tier speaks the right answer in its reasoning; the first is right only where it also gives it.
    first = (await measured(knowing_tiers())).tiers[0]

    assert first.accuracy.count == 10
    assert (first.prompt_tokens, first.completion_tokens, first.reasoning_tokens) == (400, 800, 120)


async def test_tasks_are_asked_greedily_and_a_thinking_tier_keeps_all_its_thinking() -> None:
    tiers = knowing_tiers()

    await measured(tiers)

    limits = [{request.max_tokens for request in tier.requests} for tier in tiers]
    assert limits == [{ANSWER_TOKENS}, {ANSWER_TOKENS}, {ANSWER_TOKENS}, {ANSWER_TOKENS + 622}]
    assert {(r.sampling.temperature, r.sampling.top_p) for tier in tiers for r in tier.requests} == {(0.0, 0.9)}


async def test_the_report_names_what_was_measured() -> None:
    report = await measured(knowing_tiers())

    assert (report.catalog, report.fingerprint) == ("laptop", LAPTOP.fingerprint)
    assert (report.seed, report.per_level) == (SEED, PER_LEVEL)
    assert [tier.policy for tier in report.tiers] == ["plain", "plain", "self-consistency", "chain-of-thought"]


async def test_progress_ends_at_the_whole_of_the_work() -> None:
    seen: list[tuple[str, float]] = []

    await measure_tiers(
        knowing_tiers(), LAPTOP, seed=SEED, per_level=PER_LEVEL, concurrency=4,
        progress=lambda stage, share: seen.append((stage, share)),
    )  # fmt: skip

    assert len(seen) == 4 * 40
    assert [share for _, share in seen] == sorted(share for _, share in seen)
    assert seen[-1] == ("tier-4", 1.0)


async def test_a_tier_that_fails_ends_the_measurement_with_its_name_and_reason() -> None:
    tiers = knowing_tiers()
    tiers[2].error = TierUnavailableError("the queue is full")

    with pytest.raises(TierMeasurementError, match=r"tier-3 could not answer .* the queue is full"):
        await measured(tiers)
    assert not tiers[3].requests


async def test_an_answer_that_breaks_off_is_no_wrong_answer() -> None:
    tiers = knowing_tiers()
    tiers[0].finish_reason = "error"

    with pytest.raises(TierMeasurementError, match=r"tier-1 .* broke off"):
        await measured(tiers)
