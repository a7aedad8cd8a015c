"""What routes while the classifier is unavailable: by length, signs of reasoning, and the form that is wanted."""

import msgspec
import pytest

from classifier.features.routing_input import routing_input_of_text
from classifier.policy.decide import HARD_SIGNS, heuristic_prediction

SHORT = routing_input_of_text("hello there")


def difficulty(**changes: object) -> float:
    return 1.0 - heuristic_prediction(msgspec.structs.replace(SHORT, **changes)).p_ok[0]


def test_the_difficulty_of_a_prompt_grows_from_a_tenth_with_its_length_and_its_signs() -> None:
    assert difficulty() == pytest.approx(0.1)
    assert difficulty(turn_chars=80) == pytest.approx(0.1)
    assert difficulty(turn_chars=80 + 980) == pytest.approx(0.1 + 0.5 * 0.5)
    assert difficulty(turn_chars=4000) == difficulty(turn_chars=90_000) == pytest.approx(0.6)
    assert difficulty(turn="Compare and EVALUATE these") == pytest.approx(0.5)
    assert difficulty(has_tools=True) == difficulty(has_schema=True) == pytest.approx(0.3)
    assert difficulty(has_tools=True, has_schema=True) == pytest.approx(0.3)
    assert difficulty(turn=" ".join(HARD_SIGNS), turn_chars=4000) == 1.0


@pytest.mark.parametrize("tiers", [1, 2, 4, 5])
def test_the_strongest_tier_is_always_good_enough_and_the_others_in_equal_steps(tiers: int) -> None:
    found = heuristic_prediction(msgspec.structs.replace(SHORT, turn_chars=4000), tiers)
    assert found.p_ok == pytest.approx([1 - 0.6 * (tiers - 1 - k) / max(tiers - 1, 1) for k in range(tiers)])
    assert (found.kind, found.novelty) == ("heuristic", 0.0)


def test_four_tiers_are_usual_and_the_contributions_are_of_length_and_signs() -> None:
    found = heuristic_prediction(msgspec.structs.replace(SHORT, turn="prove it, derive it", turn_chars=1000))
    assert len(found.p_ok) == 4
    # Half the root of 920/3,920.
    assert found.contributions == [("length", -0.2422), ("hard_signs", -0.4)]
