"""Recoveries of tiers in simulated deployments, in which predictions follow labels and routing follows predictions."""

import statistics

import numpy as np
import pytest

from quality.monitor.detectors import RecoveryWatch, ShiftSettings, Verdict, risen

CLASSES, KINDS, TIERS = 4, 3, 3
COSTS, EXCHANGE = np.array([0.05, 0.2, 0.5, 1.0]), 0.3
BAD_UNTIL = 150


def answers(good: int, bad: int, at: float = 0.0, kind: str = "SIMPLE, exact") -> list[Verdict]:
    return [Verdict(number < good, at, "t", kind) for number in range(good + bad)]


def recoveries(seed: int, *, mended: bool, prompts: int = 300) -> list[tuple[int, int]]:
    """Return the number of the prompt and the tier of each recovery.

    Shares of good answers are by class, kind of prompt in it, and tier; routing starts from a prior that is wrong, in a
    third of the deployments much too low, and learns kinds one by one. Where `mended`, tier 2 is bad for the first 150
    prompts and then good.
    """
    draw = np.random.default_rng(seed)
    truth = np.sort(draw.beta(1.2, 0.7, size=(CLASSES, KINDS, TIERS)), axis=2)
    prior = np.sort(draw.beta(2, 2, size=(CLASSES, TIERS)), axis=1) * draw.choice([0.3, 0.6, 1.0])
    of_class = draw.dirichlet(np.full(CLASSES, 2.0))
    seen, good = np.zeros_like(truth), np.zeros_like(truth)
    watch, found = RecoveryWatch(ShiftSettings()), []
    for number in range(prompts):
        if number % 5 == 0:
            by_class = (10 * prior + good.sum(axis=1)) / (10 + seen.sum(axis=1))
            p_ok = (10 * by_class[:, None] + good) / (10 + seen)
        if mended:
            truth[:, :, 1] = 0.1 if number < BAD_UNTIL else 0.97
        one, kind = int(draw.choice(CLASSES, p=of_class)), int(draw.integers(KINDS))
        chosen = int(np.argmax(np.append(p_ok[one, kind], 1.0) - EXCHANGE * COSTS))
        probed = draw.random() < 0.4
        for tier in range(TIERS) if probed else [chosen] * (chosen < TIERS):
            verdict = Verdict(bool(draw.random() < truth[one, kind, tier]), float(number), "t", str(one))
            if seen[one, :, tier].sum() < 2:
                watch.remember(tier + 1, verdict)
            elif watch.observe(tier + 1, f"tier {tier + 1}, familiar prompts", verdict, p_ok[one, kind, tier]):
                found.append((number, tier + 1))
            seen[one, kind, tier] += 1
            good[one, kind, tier] += verdict.good
    return found


def test_at_most_one_of_twenty_deployments_in_which_nothing_changes_have_a_recovery() -> None:
    assert sum(bool(recoveries(seed, mended=False)) for seed in range(40)) <= 2


def test_a_mended_tier_recovers_within_40_prompts_in_nine_of_ten_deployments() -> None:
    first = [
        min((number - BAD_UNTIL for number, tier in recoveries(seed, mended=True) if tier == 2 and number >= BAD_UNTIL),
            default=1000)
        for seed in range(50)
    ]  # fmt: skip
    assert sum(prompts <= 40 for prompts in first) >= 45
    assert statistics.median(first) <= 25


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        (answers(0, 10), answers(10, 0), True), (answers(0, 10), answers(2, 0), False),
        (answers(0, 0), answers(40, 0), False), (answers(18, 2), answers(20, 0), False),
        # Bad for eight answers after a hundred good ones.
        (answers(100, 8), answers(9, 0), True),
        # Of another kind of prompts, or by another judge.
        (answers(0, 10), answers(10, 0, kind="EXPERT, exact"), False),
    ],
)  # fmt: skip
def test_a_rise_is_of_answers_that_can_be_compared_and_beyond_chance(
    before: list[Verdict], after: list[Verdict], shown: bool
) -> None:
    assert (risen(before, after) >= 100.0) == shown


def test_without_a_change_evidence_of_a_rise_is_one_in_the_mean() -> None:
    draw = np.random.default_rng(3)
    for share in (0.2, 0.5, 0.9):
        found = []
        for _ in range(1000):
            good = draw.random(40) < share
            verdicts = [Verdict(bool(one), 0.0, "t", "k") for one in good]
            found.append(risen(verdicts[:20], verdicts[20:]))
        assert np.mean(found) <= 1.0


def test_a_recovery_is_of_the_tenant_whose_answers_show_it_and_of_its_answers_since() -> None:
    watch, found = RecoveryWatch(ShiftSettings(false_alarm_every=100.0)), []
    for number in range(40):
        at = float(number)
        for tenant, good in (("mended", number >= 20), ("steady", True)):
            verdict = Verdict(good, at, tenant, "SIMPLE, exact")
            predicted = 0.2 if tenant == "mended" else 0.98
            recovery = watch.observe(1, "tier 1, familiar prompts", verdict, predicted)
            found += [recovery] if recovery is not None else []
    [recovery] = found
    assert (recovery.tenant, recovery.since, recovery.rate) == ("mended", 20.0, 1.0)
    assert recovery.answers <= 12
