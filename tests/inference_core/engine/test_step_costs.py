"""What verifying costs is measured, interpolated, and guessed low where it is not known yet."""

import pytest

from inference_core.engine.drafter import StepCosts
from inference_core.engine.speculator import Acceptance


def test_between_measurements_costs_go_on_as_they_rose_but_not_above_their_neighbours():
    costs = StepCosts()
    costs.observe(2, 1.0)
    costs.observe(12, 6.0)
    assert costs.seconds(4) == 1.0
    costs.observe(4, 1.2)
    assert costs.seconds(6) == pytest.approx(1.4)
    costs.observe(6, 2.5)
    assert costs.seconds(8) == pytest.approx(2.5 + 3.5 / 3)


def test_beyond_measurements_costs_go_on_as_they_rose():
    costs = StepCosts()
    costs.observe(2, 1.0)
    assert costs.seconds(8) == 1.0
    costs.observe(4, 2.0)
    assert costs.seconds(8) == pytest.approx(4.0)


def test_below_measurements_nothing_is_claimed():
    costs = StepCosts()
    costs.observe(4, 1.0)
    assert costs.seconds(3) is None


def test_a_lasting_change_is_believed_and_a_pause_is_not():
    costs = StepCosts()
    costs.observe(1, 1.0)
    costs.observe(1, 100.0)
    assert costs.seconds(1) <= 1.2
    for _ in range(60):
        costs.observe(1, 2.0)
    assert costs.seconds(1) == pytest.approx(2.0, rel=0.01)


def test_many_rows_share_a_measurement_with_their_neighbours():
    costs = StepCosts()
    costs.observe(98, 1.0)
    costs.observe(99, 1.0)
    assert costs._rows == [96]


def test_acceptance_is_measured_apart_for_the_first_token_and_the_rest():
    acceptance = Acceptance(keep=1.0)
    for _ in range(500):
        acceptance.record(0, 4)
        acceptance.record(4, 4)
    first, later = acceptance.rates()
    assert first == pytest.approx(0.5, abs=0.01)
    assert later == Acceptance.MOST


def test_before_anything_is_known_the_prior_stands():
    assert Acceptance(keep=0.9).rates((0.3, 0.7)) == (0.3, 0.7)


def test_a_bad_past_fades_while_nothing_is_tried():
    acceptance = Acceptance(keep=0.9)
    for _ in range(20):
        acceptance.record(0, 3)
    low = acceptance.rates()[0]
    for _ in range(600):
        acceptance.fade()
    assert low < 0.25 < 0.55 < acceptance.rates()[0]


def test_a_noisy_measurement_does_not_exceed_the_measured_cost_of_more_rows():
    costs = StepCosts()
    costs.observe(1, 1.0)
    costs.observe(8, 3.0)
    costs.observe(4, 50.0)
    assert costs.seconds(4) == 3.0
    costs.observe(16, 99.0)
    assert costs.seconds(16) == pytest.approx(3.0 * 2 * 1.5)
