"""Bounds that hold however often one looks."""

from math import log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quality.statistics import deviation, log_evidence, sums_of, values_needed

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
