"""The exact McNemar test agrees with the binomial test, and never calls equals better."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from quality.statistics import better_p_value


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
