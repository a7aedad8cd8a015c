"""Medians, ranges, ratios and intervals of rounds."""

import math
import statistics

import pytest

from benchmarks.report.measured import Spread
from benchmarks.report.rounds import geometric_interval, ratio, ratio_of_runs, spread


def test_a_spread_is_the_median_and_the_range_of_what_there_is():
    assert spread([3.0, None, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
    assert spread([None]) is None


def test_a_ratio_is_of_medians_and_its_range_of_single_rounds():
    assert ratio([2.0, 4.0, 9.0], [1.0, 4.0, 3.0]) == Spread(4 / 3, 1.0, 3.0)


def test_rounds_without_a_figure_or_with_a_base_of_zero_are_left_out():
    assert ratio([2.0, None, 5.0], [1.0, 1.0, 0.0]) == Spread(2.0, 2.0, 2.0)
    assert ratio([1.0], [0.0]) is None


def test_an_interval_of_ratios_is_students_over_their_logarithms():
    found = geometric_interval([1.0, 1.1, 1.21])

    # Steps of 0.0953 in the logarithm: a standard error of 0.055, times 4.303 for two degrees of freedom.
    assert found.median == pytest.approx(1.1)
    assert math.log(found.high / 1.1) == pytest.approx(4.303 * math.log(1.1) / math.sqrt(3))


def test_two_runs_differ_by_the_ratio_of_their_geometric_means_with_welchs_interval():
    before = [95.0, 100.0, 105.0]

    found = ratio_of_runs([2 * value for value in before], before)

    # Equal variances of three rounds each have four degrees of freedom.
    half = 2.776 * statistics.stdev(map(math.log, before)) * math.sqrt(2 / 3)
    assert (found.median, found.low, found.high) == pytest.approx((2.0, 2 * math.exp(-half), 2 * math.exp(half)))


def test_a_single_round_of_either_run_tells_no_interval():
    assert ratio_of_runs([4.0], [2.0, 2.0]) == Spread(pytest.approx(2.0), 0.0, math.inf)
    assert ratio_of_runs([None], [2.0]) is None
