"""A judge's error rates come from real pairs: what reviews are picked by moves none, and planted pairs are a prior."""

import random
from typing import Any

import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from benchmarks.replay.comparisons import Comparison, as_written
from migrations.tables.quality import verifications
from quality.judges.calibration import PRIOR, Bias, Calibration, RealPairs, Verdicts, in_use
from quality.judges.known_pairs import planted_pairs
from quality.judges.pairwise import PairwiseJudge, Word
from quality.judges.panel import known_calibration, standing_panel, store_calibration
from quality.judges.self_calibration import calibrate_on_planted
from quality.verification.feedback import Feedback, FeedbackDesk
from tests.quality.judges.scripted_replies import always, by
from tests.quality.judges.test_judges import better_of
from tests.quality.loop_world import ScriptedTier, record

PLANTED = Calibration(
    judge="pairwise", true_no_worse=20, false_worse=0, true_worse=20, false_no_worse=0, abstained=0, pairs="planted",
    decided=True,
)  # fmt: skip


def drawn(
    seed: int,
    sensitivity: float,
    specificity: float,
    *,
    checked: int,
    reviewed: int,
    others: int,
    no_worse: float = 0.7,
) -> RealPairs:
    """Verdicts of a judge of these rates; of open answers an operator reads those that it called worse, at first."""
    draws = random.Random(seed)

    def one() -> tuple[bool, bool]:
        truth = draws.random() < no_worse
        return truth, draws.random() < (sensitivity if truth else 1 - specificity)

    seen = {True: Verdicts(), False: Verdicts()}
    for _ in range(checked):
        seen[True] = seen[True].with_one(*one())
    said, read = {True: 0, False: 0}, 0
    for _ in range(others):
        truth, verdict = one()
        if read < reviewed and (not verdict or draws.random() < 0.1):
            seen[False], read = seen[False].with_one(truth, verdict), read + 1
        else:
            said[verdict] += 1
    return RealPairs(checked=seen[True], reviewed=seen[False], said_no_worse=said[True], said_worse=said[False])


@pytest.mark.parametrize(("checked", "reviewed"), [(80, 0), (0, 60), (40, 30)])
@pytest.mark.parametrize(("sensitivity", "specificity"), [(0.92, 0.75), (0.75, 0.8)])
def test_the_truth_is_in_the_interval_whatever_reviews_are_picked_by(
    checked: int, reviewed: int, sensitivity: float, specificity: float
) -> None:
    runs, covered, errors = 30, 0, []
    for seed in range(runs):
        pairs = drawn(seed, sensitivity, specificity, checked=checked, reviewed=reviewed, others=400)
        found = in_use(PLANTED, pairs)
        truth = (sensitivity + specificity) / 2
        covered += found.low <= truth <= found.high
        errors.append((found.sensitivity + found.specificity) / 2 - truth)
    assert covered >= 0.85 * runs
    # Planted pairs alone would say 1.0: an error of 0.165 or 0.225.
    assert abs(sum(errors) / runs) < 0.06


def test_a_test_on_planted_pairs_is_a_weak_prior_and_answers_of_the_catalogue_count_in_full() -> None:
    alone = in_use(PLANTED, RealPairs())
    assert 1 - 1.5 / (PRIOR + 2) < alone.sensitivity < 1 - 0.5 / (PRIOR + 2)

    answered = Calibration(
        judge="pairwise", true_no_worse=90, false_worse=10, true_worse=70, false_no_worse=30, abstained=0,
        pairs="answered",
    )  # fmt: skip
    found = in_use(answered, RealPairs())
    assert (found.sensitivity, found.specificity) == pytest.approx((0.9, 0.7), abs=0.02)


def row(
    number: int, judge: str, label: str, score: float, judging: str | None = "strong", at: float = 10.0
) -> dict[str, Any]:
    return {
        "request_id": f"real-{number}", "tier": 1, "model": "m", "sampled_probability": 1.0, "sampled_reason": "sample",
        "status": "done", "judge": judge, "judging": judging, "label": label,
        "scores": {"pairwise": score, "length": 0.4}, "cost_usd": 0.0, "reserved_usd": 0.0, "attempts": 1,
        "created_at": at, "finished_at": at,
    }  # fmt: skip


async def store(engine: AsyncEngine, rows: list[dict[str, Any]]) -> None:
    async with engine.begin() as connection:
        await connection.execute(insert(verifications), rows)


async def test_the_gate_closes_when_checks_contradict_the_judge_and_only_for_that_model(engine: AsyncEngine) -> None:
    for judging in ("strong", "another"):
        await store_calibration(engine, PLANTED, judging, 1.0, "test")
    await store(engine, [row(n, "exact", "worse" if n % 2 else "no_worse", 0.5) for n in range(60)])

    wrong = await known_calibration(engine, "pairwise", "", "strong")
    other = await known_calibration(engine, "pairwise", "", "another")

    assert wrong is not None
    assert other is not None
    assert wrong.in_use is not None
    # It calls each a tie: all that are no worse are right, all that are worse wrong.
    assert wrong.in_use.pairs.checked == Verdicts(true_no_worse=30, false_no_worse=30)
    assert not wrong.trusted
    assert other.trusted
    assert other.weight > wrong.weight + 0.5
    assert not (await standing_panel(engine, PairwiseJudge(ScriptedTier(), "strong"), judging="strong")).may_label(
        "Tell me.", None
    )
    # A later measurement by hand begins again.
    await store_calibration(engine, PLANTED, "catalogue", 20.0, "test")
    again = await known_calibration(engine, "pairwise", "catalogue", "strong")
    assert again is not None
    assert again.trusted


async def test_a_review_counts_for_what_the_judge_said_and_a_callers_feedback_does_not(engine: AsyncEngine) -> None:
    await store_calibration(engine, PLANTED, "strong", 1.0, "test")
    await store(engine, [row(n, "pairwise", label, 0.0) for n, label in enumerate(("worse", "worse", "uncertain"))])
    desk = FeedbackDesk(engine, None, 4, clock=lambda: 20.0)
    await desk.take(record("real-0"), Feedback(score=1.0), reviewer="rita")
    await desk.take(record("real-1"), Feedback(score=1.0))
    await desk.take(record("real-2"), Feedback(score=1.0), reviewer="rita")

    found = await known_calibration(engine, "pairwise", "", "strong")

    assert found is not None
    assert found.in_use is not None
    # An uncertain verdict made no label, so a review of it shows no error of the judge.
    assert found.in_use.pairs == RealPairs(reviewed=Verdicts(false_worse=1), bias=Bias(longer=1))


def prefers_longer(share: float, seed: int = 0, errs: float = 0.08) -> ScriptedTier:
    """A model that takes the longer of two texts in this share of the pairs, but not in controls, and else errs on 8%
    of them."""

    def read(asked: Comparison) -> Word:
        first, second = asked.first, asked.second
        draws = random.Random(f"{seed}/{sorted((as_written(first), as_written(second)))}")
        if draws.random() < share and abs(len(first) - len(second)) > 30:
            return "first" if len(first) > len(second) else "second"
        ranks = [any(text.startswith(good) for good in GOOD) for text in (first, second)]
        errs_now = draws.random() < errs
        return better_of(ranks[0] is not errs_now, ranks[1] is not errs_now)

    return ScriptedTier(reply=by(read))


GOOD = tuple(
    {text for worse, fine in map(planted_pairs, range(300)) for text in (worse.reference_answer, fine.answer)}
    | {fine.reference_answer for _, fine in map(planted_pairs, range(300)) if fine.equal}
)


async def false_share(judge: PairwiseJudge) -> float:
    """Of labels of planted pairs after those of its test."""
    labels = []
    for number in range(100, 300):
        for pair in planted_pairs(number):
            said = await judge.judge(prompt=pair.prompt, answer=pair.answer, reference_answer=pair.reference_answer)
            labels.append(said.no_worse is not pair.no_worse)
    return sum(labels) / len(labels)


async def test_answers_of_one_length_leave_a_judge_of_length_with_the_false_labels_of_an_unbiased_one() -> None:
    unbiased = await false_share(PairwiseJudge(prefers_longer(0.0)))
    raw = await false_share(PairwiseJudge(prefers_longer(0.4)))
    corrected = await false_share(PairwiseJudge(prefers_longer(0.4), padded=True))
    lost = await false_share(PairwiseJudge(prefers_longer(0.0), padded=True))

    assert raw > unbiased + 0.08
    assert abs(corrected - unbiased) < 0.04
    assert abs(lost - unbiased) < 0.04


@pytest.mark.parametrize(("share", "padded"), [(0.45, True), (0.0, False)])
async def test_a_preference_for_a_length_is_found_in_the_test_and_corrected_on_the_panel(
    engine: AsyncEngine, share: float, padded: bool
) -> None:
    judge = PairwiseJudge(prefers_longer(share, seed=1), "strong")
    found = await calibrate_on_planted(judge)
    assert found.trusted
    await store_calibration(engine, found, "strong", 1.0, "test")

    panel = await standing_panel(engine, judge, judging="strong")

    assert panel.named("pairwise") is judge
    assert judge.padded is padded


async def test_what_a_rule_decides_is_also_asked_of_the_model_and_costs_no_label_when_it_is_away(
    engine: AsyncEngine,
) -> None:
    await store_calibration(engine, PLANTED, "strong", 1.0, "test")
    tier = ScriptedTier(reply=always("tie"))
    panel = await standing_panel(engine, PairwiseJudge(tier, "strong"), judging="strong")
    asked = {"prompt": "What is 3 + 4? Answer with the number only.", "reference_answer": "7"}

    found = await panel.judge(answer="The answer is 8.", **asked)

    assert (found.judge, found.label, found.judging) == ("exact", False, "strong")
    assert found.scores["pairwise"] == 0.5
    assert len(tier.seen) == len(found.usage) == 3
    assert (await panel.judge(answer="7", **asked)).judging is None
