"""The prices and the choices by which routers are compared."""

import numpy as np
import pytest

from classifier.policy.utility import cheapest_reaching, highest_utility, reference_prices, utility


def test_up_to_four_tiers_have_the_reference_prices_and_more_are_between_them() -> None:
    assert [reference_prices(tiers).tolist() for tiers in (2, 4)] == [[1.0, 2.5], [1.0, 2.5, 10.0, 30.0]]
    # Two more between each two.
    seven = [1.0, 2.5**0.5, 2.5, 5.0, 10.0, 300**0.5, 30.0]
    assert reference_prices(7).tolist() == pytest.approx(seven)


def test_the_utility_is_the_score_less_a_tenth_of_the_share_of_the_price() -> None:
    prices = np.array([3.0, 15.0, 30.0])
    assert utility(np.array([[0.5, 0.6, 1.0]]), prices).tolist() == [pytest.approx([0.49, 0.55, 0.9])]
    assert highest_utility(np.array([[0.95, 0.97, 1.0], [0.1, 0.2, 1.0]]), prices).tolist() == [0, 2]
    # Equal utilities: the cheapest.
    assert highest_utility(np.array([[0.0, 0.0, 0.0]]), np.array([1.0, 1.0, 1.0])).tolist() == [0]


def test_the_cheapest_that_reaches_the_threshold_is_picked_else_the_last() -> None:
    assert cheapest_reaching(np.array([[0.7, 0.9, 0.1], [0.6, 0.69, 0.1]]), 0.7).tolist() == [0, 2]
