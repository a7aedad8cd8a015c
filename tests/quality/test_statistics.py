"""Bounds that hold however often one looks, evidence by betting, and McNemar's and Welch's tests."""

from math import log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from quality.comparison.decision_gain import reference_serving
from quality.comparison.paired_outcomes import most_difference
from quality.rollout.rollout import RolloutSettings
from quality.statistics import (
    Sample,
    better_p_value,
    deviation,
    evidence,
    exceeds_p_value,
    log_evidence,
    student_tail,
    sums_of,
    values_needed,
    wealth,
)

LEVEL, RUNS, LENGTH = 0.05, 300, 1500


def failures(draw: "np.random.Generator", mean: float, skew: bool) -> tuple[int, int]:
    """How many of the runs leave the bound of each side at any time."""
    above = below = 0
    for _ in range(RUNS):
        # Most values are 0 or all are spread: the mean is the same.
        values = (draw.random(LENGTH) < mean) * 1.0 if skew else np.clip(draw.normal(mean, 0.05, LENGTH), 0.0, 1.0)
        sums = sums_of(values, 0.0, 1.0)
        apart = (sums.total * sums.scale - mean * np.arange(1, LENGTH + 1)) / sums.scale
        above += bool((log_evidence(apart, sums.variance) > log(1 / LEVEL)).any())
        below += bool((log_evidence(-apart, sums.variance) > log(1 / LEVEL)).any())
    return above, below


@pytest.mark.parametrize(("mean", "skew"), [(0.1, True), (0.5, True), (0.9, True), (0.5, False)])
def test_the_true_mean_leaves_the_bounds_at_any_time_as_rarely_as_stated(mean: float, skew: bool) -> None:
    above, below = failures(np.random.default_rng(3), mean, skew)

    # Three standard errors above what is stated.
    most = RUNS * LEVEL + 3 * (RUNS * LEVEL * (1 - LEVEL)) ** 0.5
    assert above <= most
    assert below <= most


def test_looking_at_an_ordinary_interval_after_every_value_errs_much_more_often() -> None:
    rng, wrong = np.random.default_rng(3), 0
    for _ in range(RUNS):
        values = (rng.random(LENGTH) < 0.5) * 1.0
        n = np.arange(1, LENGTH + 1)
        wrong += bool((np.cumsum(values) / n - 0.5 > 1.645 * 0.5 / np.sqrt(n))[20:].any())
    assert wrong > 2 * RUNS * LEVEL


def test_a_mean_that_drifts_with_the_past_is_bounded_as_its_average() -> None:
    rng, wrong = np.random.default_rng(5), 0
    for _ in range(RUNS):
        values, means = np.zeros(400), np.zeros(400)
        for n in range(400):
            means[n] = 0.2 + 0.6 * (values[n - 1] if n else 0.5)
            values[n] = rng.random() < means[n]
        sums = sums_of(values, 0.0, 1.0)
        apart = np.cumsum(values - means) / sums.scale
        wrong += bool((log_evidence(apart, sums.variance) > log(1 / LEVEL)).any())
    assert wrong <= RUNS * LEVEL + 3 * (RUNS * LEVEL) ** 0.5


def test_the_deviation_is_where_the_evidence_reaches_its_threshold() -> None:
    variance = np.array([0.0, 0.5, 10.0, 1000.0])

    found = deviation(variance, LEVEL)

    assert log_evidence(found, variance) == pytest.approx(np.full(4, log(1 / LEVEL)))
    assert (np.diff(found) > 0).all()


def test_a_narrow_range_of_centres_makes_the_scale_smaller_and_keeps_the_bound_valid() -> None:
    values = np.array([1.0, -1.0, 1.0])

    assert sums_of(values, -1.0, 1.0).scale == 2.0
    assert sums_of(values, -1.0, 1.0, (-0.1, 0.1)).scale == pytest.approx(1.1)


def test_a_value_beyond_its_range_is_refused() -> None:
    with pytest.raises(ValueError, match="allowed: 0"):
        sums_of(np.array([0.5, 1.5]), 0.0, 1.0)


@settings(max_examples=20)
@given(gap=st.floats(0.005, 0.3), variance=st.floats(0.001, 1.0), more=st.floats(1.01, 4.0))
def test_more_values_are_needed_for_a_smaller_gap_and_a_larger_variance(
    gap: float, variance: float, more: float
) -> None:
    def needed(gap: float, variance: float) -> int:
        return values_needed(gap, variance, 1.0, LEVEL, 1_000_000)

    assert needed(gap / more, variance) >= needed(gap, variance)
    assert needed(gap, variance * more) >= needed(gap, variance)


def test_the_values_needed_are_the_first_that_suffice() -> None:
    needed = values_needed(0.05, 0.25, 1.0, LEVEL, 1_000_000)

    def half(n: int) -> float:
        return float(deviation(np.array(n * 0.25), LEVEL)) / n

    assert half(needed) <= 0.05 < half(needed - 1)


def test_false_gains_are_rare_under_continuous_monitoring() -> None:
    rng = np.random.default_rng(1)
    streams = rng.choice([-1.0, 0.0, 0.0, 1.0], (1000, 400))

    misled = sum(evidence(stream, 1.1) >= 20 for stream in streams)

    assert misled <= 1000 * 0.05


def test_gains_that_are_there_are_found() -> None:
    gains = np.random.default_rng(2).choice([-1.0, 1.0], 400, p=[0.35, 0.65])

    assert evidence(gains, 1.1) >= 100
    assert evidence(-gains, 1.1) < 20


def test_evidence_once_reached_stays_and_none_is_one() -> None:
    assert evidence(np.array([]), 1.0) == 1.0
    up, down = np.full(20, 1.0), np.full(200, -0.9)
    assert evidence(np.concatenate([up, down]), 1.0) == pytest.approx(wealth(up, 1.0)[-1])


def test_a_gain_below_the_bound_is_refused() -> None:
    with pytest.raises(ValueError, match="below the least possible"):
        wealth(np.array([-1.2]), 1.1)


@pytest.mark.parametrize(
    ("other", "loss", "least", "most"),
    [(0.2, 0.0, 0.0, 0.05), (0.2, 0.02, 0.0, 0.1), (0.3, 0.1, 0.6, 0.95), (0.5, 0.25, 0.99, 1.0)],
    ids=["no harm", "2 points", "10 points", "25 points"],
)
def test_a_rollout_finds_large_losses_and_misses_small_ones(
    other: float, loss: float, least: float, most: float
) -> None:
    """Of versions that choose another tier for a share `other` of the prompts and lose `loss` on all, the share that a
    canary of 100 probes or a watch of 500 takes back; as docs/quality-loop.md says."""
    rng, settings, taken_back = np.random.default_rng(3), RolloutSettings(), 0
    for _ in range(200):
        worse = np.where(rng.random(500) < 0.5 + loss / (2 * other), 1.0, -1.0)
        harm = wealth(np.where(rng.random(500) < other, worse, 0.0), most_difference(reference_serving(4)))
        canary = harm[: settings.patience].max() >= 2 / settings.stop_level
        taken_back += canary or harm.max() >= 1 / settings.rollback_level

    assert least <= taken_back / 200 <= most


@given(st.integers(0, 400), st.integers(0, 400))
def test_it_is_the_one_sided_binomial_test_of_the_discordant_pairs(gains: int, losses: int) -> None:
    p_value = better_p_value(gains, losses)

    if gains + losses == 0:
        assert p_value == 1.0
    else:
        assert p_value == pytest.approx(binomtest(gains, gains + losses, 0.5, alternative="greater").pvalue, rel=1e-9)


def test_five_gains_without_a_loss_are_the_least_that_is_significant() -> None:
    assert better_p_value(4, 0) == 1 / 16
    assert better_p_value(5, 0) == 1 / 32


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(ValueError, match="neither may be negative"):
        better_p_value(-1, 3)


# Quantiles of Student's t from tables: t, degrees of freedom, probability above.
TABLE = [(1.833, 9, 0.05), (4.297, 9, 0.001), (4.781, 9, 0.0005), (2.042, 30, 0.025), (3.646, 30, 0.0005)]


@pytest.mark.parametrize(("t", "freedom", "tail"), TABLE)
def test_the_tail_is_that_of_the_tables(t: float, freedom: int, tail: float) -> None:
    assert student_tail(t, freedom) == pytest.approx(tail, rel=0.05)
    assert student_tail(-t, freedom) == pytest.approx(1 - tail, rel=0.001)


def test_means_of_unequal_variances_are_compared_with_the_margin() -> None:
    old, new = Sample(size=20, mean=10.0, variance=4.0), Sample(size=10, mean=16.0, variance=25.0)

    # The standard error is sqrt(25 / 10 + 4 / 20) = 1.643, with 10.46 degrees of freedom.
    assert exceeds_p_value(new, old) == pytest.approx(0.0022, rel=0.1)
    assert exceeds_p_value(new, old, 1.6) == pytest.approx(0.5)
    assert exceeds_p_value(new, old, 2.0) > 0.95
    # Twice the old values vary four times as much: the standard error is sqrt(4 / 20 + 4 * 25 / 10) = 3.194.
    varied, steady = Sample(size=10, mean=10.0, variance=25.0), Sample(size=20, mean=22.0, variance=4.0)
    assert exceeds_p_value(steady, varied, 2.0) == pytest.approx(0.273, rel=0.03)


def test_values_that_do_not_vary_leave_nothing_to_chance() -> None:
    low, high = (Sample(size=5, mean=mean, variance=0.0) for mean in (1.0, 2.0))

    assert (exceeds_p_value(high, low), exceeds_p_value(low, high), exceeds_p_value(high, low, 2.0)) == (0.0, 1.0, 1.0)


def test_a_single_value_has_no_variance() -> None:
    with pytest.raises(ValueError, match="a variance needs 2"):
        exceeds_p_value(Sample(size=1, mean=1.0, variance=0.0), Sample(size=9, mean=1.0, variance=1.0))
