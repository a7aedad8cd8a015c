"""Where trials and experiments end and candidates are refused: bounds, levels and words, without a database."""

from statistics import NormalDist
from typing import Any

import msgspec
import numpy as np
import pytest

from classifier.policy.experiment_split import Arm
from quality.comparison.paired_outcomes import Paired
from quality.rollout.experiments import Plan, Results, concluded, ending_of
from quality.rollout.guardrails import FEWEST_UNITS, Guarded, Guardrails, judged, looks_due, sample_of
from quality.rollout.promotion_gate import TierCalibration, calibration_reasons, class_gains, class_reasons, shown
from quality.rollout.rollout import RolloutSettings
from quality.statistics import Estimate, Sample, exceeds_p_value

PLAN = Plan(share=0.2, a=Arm(tier=1), b=Arm(tier=2), tiers=4, most_probes=100, level=0.05)
BREACHED = Guarded(measure="cost", margin=0.5, level=0.01, units_a=12, units_b=11, a=0.002, b=0.006, p_value=0.01)


@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_a_margin_is_at_least_nothing_and_finite(margin: float) -> None:
    assert Guardrails(ttft=margin).margins == {"ttft": margin}
    for bad in (-0.1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="the margin of e2e"):
            Guardrails(e2e=bad)


def test_a_guardrail_is_breached_at_its_level_and_tested_from_ten_units_of_each_arm_on() -> None:
    assert BREACHED.is_breached
    assert not msgspec.structs.replace(BREACHED, p_value=0.0101).is_breached
    assert [msgspec.structs.replace(BREACHED, units_b=units).is_tested for units in (9, 10)] == [False, True]
    assert not msgspec.structs.replace(BREACHED, units_a=9, units_b=90).is_tested
    assert BREACHED.times == pytest.approx(3.0)
    assert msgspec.structs.replace(BREACHED, a=None).times is None
    assert msgspec.structs.replace(BREACHED, b=None).times is None


@pytest.mark.parametrize(
    ("measure", "a", "b", "said"),
    [
        ("cost", 0.002, 0.006, "the cost per request of b is $0.006 against $0.002 of a, 3.00 times as much"),
        ("ttft", 99.96, 100.0, "the time to the first token of b is 100 ms against 100 ms of a, 1.00 times as much"),
        ("ttft", 9.876, 99.9, "the time to the first token of b is 99.9 ms against 9.88 ms of a, 10.12 times as much"),
        ("e2e", None, 1234.0, "the time to the end of an answer of b is 1,234 ms against nothing of a"),
    ],
)
def test_a_breach_is_said_in_its_unit(measure: Any, a: float | None, b: float, said: str) -> None:
    reason = msgspec.structs.replace(BREACHED, measure=measure, a=a, b=b).reason
    assert reason == (
        f"guardrail: {said}, over the means of 11 and 12 units; at most 1.50 times is allowed (p 0.01, needed 0.01)"
    )


def test_the_level_is_spread_over_guardrails_and_looks_and_each_is_welchs_test_beyond_its_margin() -> None:
    a, b = Sample(size=10, mean=1.0, variance=0.04), Sample(size=12, mean=2.0, variance=0.09)
    few = Sample(size=FEWEST_UNITS - 1, mean=9.0, variance=0.01)
    samples = {("a", "cost"): a, ("b", "cost"): b, ("a", "ttft"): a, ("b", "ttft"): few, ("b", "e2e"): b}
    cost, ttft, e2e = judged(Guardrails(cost=0.5, ttft=0.2, e2e=0.1), samples, 0.06, 3)
    assert {one.level for one in (cost, ttft, e2e)} == {0.06 / (3 * 3 * 4)}
    assert cost == Guarded(
        measure="cost", margin=0.5, level=cost.level, units_a=10, units_b=12, a=1.0, b=2.0,
        p_value=exceeds_p_value(b, a, 1.5),
    )  # fmt: skip
    assert (ttft.p_value, ttft.units_a, ttft.units_b, ttft.b) == (1.0, 10, 9, 9.0)
    assert (e2e.p_value, e2e.units_a, e2e.a, e2e.units_b) == (1.0, 0, None, 12)
    [without_b] = judged(Guardrails(cost=0.5), {("a", "cost"): a}, 0.06, 1)
    assert (without_b.units_a, without_b.units_b, without_b.a, without_b.b) == (10, 0, 1.0, None)
    assert judged(Guardrails(), samples, 0.06, 1) == []
    [alone] = judged(Guardrails(cost=0.5), samples, 0.06, 1)
    assert alone.level == 0.03


def test_moments_make_a_sample_and_a_single_value_has_no_variance() -> None:
    values = [1.0, 2.0, 4.0]
    made = sample_of(3, sum(values), sum(value * value for value in values))
    assert (made.size, made.mean) == (3, pytest.approx(7 / 3))
    assert made.variance == pytest.approx(np.var(values, ddof=1))
    assert sample_of(2, 4.0, 10.0).variance == pytest.approx(2.0)
    assert sample_of(1, 5.0, 25.0) == Sample(size=1, mean=5.0, variance=0.0)
    assert sample_of(2, 2.0, 2.0 - 1e-12).variance == 0.0


def test_the_first_look_is_after_fifty_requests_and_each_next_after_half_as_many_again() -> None:
    assert [looks_due(number) for number in (0, 49, 50, 74, 76, 112, 113, 168, 169)] == [0, 0, 1, 1, 2, 2, 3, 3, 4]


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, None),
        ({"benefit": 39.9, "harm": 39.9}, None),
        ({"benefit": 40.0, "harm": 50.0}, ("b", "tier 2 is better than tier 1 on 7 probes: b gains +0.1000 (worse "
                                               "-0.0200, cost -0.0300); evidence 40")),
        ({"harm": 40.0}, ("a", "tier 1 is better than tier 2 on 7 probes: b gains +0.1000 (worse -0.0200, cost "
                               "-0.0300); evidence 40")),
        ({"probes": 99}, None),
        ({"probes": 100}, (None, "no difference was found on 100 probes: b gains +0.1000 (worse -0.0200, cost "
                                 "-0.0300)")),
    ],
)  # fmt: skip
def test_an_experiment_is_decided_by_evidence_at_half_the_level_or_by_patience(
    changes: dict[str, Any], verdict: tuple[str | None, str] | None
) -> None:
    paired = Paired(**{"probes": 7, "gain": 0.1, "worse": -0.02, "cost": -0.03} | changes)
    assert concluded(PLAN, paired) == verdict


def test_a_verdict_goes_before_a_breach_and_a_breach_before_a_problem() -> None:
    won = msgspec.structs.replace(Paired(), probes=7, benefit=40.0)
    fine = msgspec.structs.replace(BREACHED, p_value=0.5)
    all_ = Results(paired=won, guardrails=[fine, BREACHED], problem="a file is broken")
    ending = ending_of(PLAN, all_)
    assert ending is not None
    assert (ending.status, ending.results.winner, ending.results.breached) == ("done", "b", None)
    ending = ending_of(PLAN, msgspec.structs.replace(all_, paired=Paired()))
    assert ending is not None
    assert (ending.status, ending.results.breached, ending.reason) == ("stopped", "cost", BREACHED.reason)
    ending = ending_of(PLAN, Results(guardrails=[fine], problem="a file is broken"))
    assert ending is not None
    assert (ending.status, ending.reason) == ("stopped", "a file is broken")
    assert ending_of(PLAN, Results(guardrails=[fine])) is None


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"level": 0.0}, "level"), ({"level": 1.0}, "level"), ({"most_probes": 0}, "most_probes"),
     ({"b": Arm(tier=5)}, "an arm is tier 5; there are the tiers 1 to 4"), ({"b": Arm(tier=0)}, "an arm is tier 0"),
     ({"share": 0.0}, "share")],
)  # fmt: skip
def test_a_plan_without_meaning_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Plan(**{"share": 0.2, "a": Arm(tier=1), "b": Arm(tier=4), "tiers": 4} | changes)
    assert Plan(share=1.0, a=Arm(tier=1), b=Arm(version="v"), tiers=4, most_probes=1).split("x").experiment_id == "x"


@pytest.mark.parametrize(
    "changes",
    [{"share": -0.1}, {"share": 1.0}, {"days": 0.0}, {"patience": 0}, {"watch_probes": 0},
     *({name: bad} for name in ("stop_level", "rollback_level", "promote_level", "margin", "live_margin")
       for bad in (0.0, 1.0))],
)  # fmt: skip
def test_settings_of_a_trial_without_meaning_are_refused_by_name(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(changes))} is"):
        RolloutSettings(**changes)
    assert RolloutSettings(share=0.0, patience=1, watch_probes=1, days=0.1)


def test_the_gain_of_each_class_with_enough_rows_has_a_bound_for_all_classes_together() -> None:
    rng = np.random.default_rng(0)
    rows = [(0, 50), (1, 49), (2, 80), (3, 60)]
    classes = np.repeat(np.eye(4)[[one for one, _ in rows]], [number for _, number in rows], axis=0)
    difference = rng.normal(size=len(classes)) * 0.1 - 0.2 * classes[:, 3]
    found = class_gains(classes, difference)
    z = NormalDist().inv_cdf(1 - 0.05 / 3)
    assert [one.complexity for one in sorted(found, key=lambda one: one.rows)] == ["SIMPLE", "EXPERT", "COMPLEX"]
    assert found == sorted(found, key=lambda one: one.high)
    assert found[0].complexity == "EXPERT"
    for one in found:
        mine = difference[classes[:, {"SIMPLE": 0, "COMPLEX": 2, "EXPERT": 3}[one.complexity]] == 1]
        high = mine.mean() + z * mine.std(ddof=1) / len(mine) ** 0.5
        assert (one.rows, one.gain, one.high) == (len(mine), round(mine.mean(), 6), round(high, 6))
    assert class_gains(np.zeros((0, 4)), np.zeros(0)) == []
    assert class_gains(classes[:49], difference[:49]) == []
    [reason] = class_reasons([msgspec.structs.replace(found[0], gain=-0.2, high=-0.0101), *found[1:]])
    assert reason == "loses on the 60 EXPERT rows: -0.2000, at most -0.0101"
    assert class_reasons([msgspec.structs.replace(found[0], high=-0.01)]) == []


def test_a_tier_is_refused_above_what_is_allowed_unless_it_is_sharper() -> None:
    tier = TierCalibration(tier=2, rows=60, error=0.1, allowed=0.1)
    above = msgspec.structs.replace(tier, error=0.1001)
    assert calibration_reasons([tier, msgspec.structs.replace(above, sharper=True)]) == []
    assert calibration_reasons([above]) == ["tier 2: calibration error 0.100 on 60 rows is above 0.100"]
    assert shown(Estimate(0.12345, -0.1, 0.2)) == "+0.1235 [-0.1000, +0.2000]"
