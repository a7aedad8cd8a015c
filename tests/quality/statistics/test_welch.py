"""Welch's test from moments: Student's tail against published values, and what cannot be tested."""

import pytest

from quality.statistics import Sample, exceeds_p_value, student_tail

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


def test_values_that_do_not_vary_leave_nothing_to_chance() -> None:
    low, high = (Sample(size=5, mean=mean, variance=0.0) for mean in (1.0, 2.0))

    assert (exceeds_p_value(high, low), exceeds_p_value(low, high), exceeds_p_value(high, low, 2.0)) == (0.0, 1.0, 1.0)


def test_a_single_value_has_no_variance() -> None:
    with pytest.raises(ValueError, match="a variance needs 2"):
        exceeds_p_value(Sample(size=1, mean=1.0, variance=0.0), Sample(size=9, mean=1.0, variance=1.0))
