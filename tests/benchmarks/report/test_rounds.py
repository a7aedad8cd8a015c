"""Medians, ranges, ratios and intervals of rounds."""

import math

import pytest

from benchmarks.report.measured import Spread
from benchmarks.report.rounds import geometric_interval, ratio, spread


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
