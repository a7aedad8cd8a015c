"""Outcomes belong to a tier's fingerprint: they follow the tier, and end with it or with the strongest."""

import pytest

from quality.verification.training_rows import outcomes_of_tiers

ROW = [False, True, None, True]
OWNERS = ["small", "medium", "large", "best"]


def test_the_outcomes_of_the_tiers_that_stayed_are_kept() -> None:
    assert outcomes_of_tiers(ROW, OWNERS, OWNERS) == ROW
    assert outcomes_of_tiers(ROW, OWNERS, ["small", "another", "large", "best"]) == [False, None, None, True]


def test_they_follow_a_tier_to_its_new_place_in_a_longer_or_shorter_catalogue() -> None:
    assert outcomes_of_tiers(ROW, OWNERS, ["medium", "best"]) == [True, True]
    assert outcomes_of_tiers(ROW, OWNERS, ["new", "small", "medium", "large", "best"]) == [
        None,
        False,
        True,
        None,
        True,
    ]


@pytest.mark.parametrize(
    "tiers", [["small", "medium", "large", "better"], ["large", "best"], ["small", "medium"], ["another", "best"]]
)
def test_nothing_is_left_without_the_strongest_or_without_an_outcome(tiers: list[str]) -> None:
    assert outcomes_of_tiers(ROW, OWNERS, tiers) is None


def test_a_row_of_unknown_tiers_is_of_todays_where_it_has_as_many() -> None:
    assert outcomes_of_tiers(ROW, None, OWNERS) == ROW
    assert outcomes_of_tiers(ROW, None, ["small", "best"]) is None
