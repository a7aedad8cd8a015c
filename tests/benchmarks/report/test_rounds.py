"""Medians, ranges and ratios of rounds."""

from benchmarks.report.rounds import ratio, spread
from gateway.reporting.measured import Spread


def test_a_spread_is_the_median_and_the_range_of_what_there_is():
    assert spread([3.0, None, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
    assert spread([None]) is None


def test_a_ratio_is_of_medians_and_its_range_of_single_rounds():
    assert ratio([2.0, 4.0, 9.0], [1.0, 4.0, 3.0]) == Spread(4 / 3, 1.0, 3.0)


def test_rounds_without_a_figure_or_with_a_base_of_zero_are_left_out():
    assert ratio([2.0, None, 5.0], [1.0, 1.0, 0.0]) == Spread(2.0, 2.0, 2.0)
    assert ratio([1.0], [0.0]) is None
