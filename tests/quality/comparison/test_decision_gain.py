"""What decisions are worth: the utility of routing near the target, by labels of single tiers; and what is certain."""

import numpy as np
import pytest

from quality.comparison.decision_gain import (
    LEAST_DIFFERENT,
    SPREAD,
    Compared,
    Serving,
    different_groups,
    mean_gain,
    reference_serving,
    utility_gains,
)
from quality.statistics import Estimate

TWO = Serving(target=0.6, cost_shares=[0.0, 1.0])
BETTER, LEVEL, WORSE = Estimate(0.02, 0.01, 0.03), Estimate(0.0, -0.01, 0.01), Estimate(-0.02, -0.03, -0.01)


@pytest.mark.parametrize("target", [0.6, 0.95])
def test_of_two_tiers_it_is_the_utility_of_routing_over_targets_near_the_one_that_serves(target: float) -> None:
    rng = np.random.default_rng(0)
    before, after = rng.random((2, 200, 1))
    scores = rng.integers(0, 2, (200, 1)).astype(np.float64)
    low, high = target - SPREAD, min(target + SPREAD, 1.0)
    targets = np.linspace(low, high, 20_001)
    weak = scores - targets
    routed = ((after >= targets) * weak - (before >= targets) * weak).mean(axis=1)
    gains = utility_gains(scores, before, after, Serving(target=target, cost_shares=[0.0, 1.0]))
    np.testing.assert_allclose(gains[:, 0], routed, atol=2e-4)


def test_what_moves_no_decision_is_worth_nothing_however_much_nearer_it_is() -> None:
    gains = utility_gains(np.zeros((3, 1)), np.full((3, 1), 0.45), np.full((3, 1), 0.0), TWO)
    assert gains.tolist() == [[0.0]] * 3


def test_a_tier_counts_by_its_own_label_and_by_what_it_saves() -> None:
    scores = np.array([[1.0, np.nan], [np.nan, 1.0]])
    prices = Serving(target=0.6, cost_shares=[0.0, 0.75, 1.0])
    gains = utility_gains(scores, np.zeros((2, 2)), np.ones((2, 2)), prices)
    assert gains[0, 1] == gains[1, 0] == 0
    # Worth y - t, with t = 1 - 0.4 (1 - c).
    assert gains[0, 0] == pytest.approx(0.4)
    assert gains[1, 1] == pytest.approx(0.1)


def test_related_prompts_are_less_evidence_than_others() -> None:
    gains, weights = np.random.default_rng(0).normal(0.1, 1.0, 200).repeat(2), np.ones(400)
    apart, together = (mean_gain(gains, weights, groups) for groups in (np.arange(400), np.arange(400) // 2))
    assert apart.value == together.value == pytest.approx(float(gains.mean()), abs=1e-6)
    assert together.high - together.low == pytest.approx((apart.high - apart.low) * 2**0.5, rel=0.01)
    assert different_groups(np.where(np.arange(400) < 6, 1.0, 0.0), np.arange(400) // 2) == 3


@pytest.mark.parametrize(
    ("error", "utility", "different", "better", "decides"),
    [
        (LEVEL, BETTER, LEAST_DIFFERENT, True, True),
        (LEVEL, BETTER, LEAST_DIFFERENT - 1, False, False),
        (BETTER, LEVEL, 100, True, False),
        (WORSE, BETTER, 100, False, False),
        (BETTER, WORSE, 100, False, False),
        (LEVEL, LEVEL, 100, False, False),
    ],
)
def test_better_is_by_one_of_both_and_certainly_worse_by_neither(
    error: Estimate, utility: Estimate, different: int, better: bool, decides: bool
) -> None:
    compared = Compared(error, utility, different)
    assert (compared.is_better, compared.decides_better) == (better, decides)


def test_reference_prices_are_relative_to_the_strongest() -> None:
    assert reference_serving(4).cost_shares == pytest.approx([1 / 30, 2.5 / 30, 1 / 3, 1.0])
