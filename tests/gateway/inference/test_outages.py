"""Which answers count as below their target because a tier was down."""

from typing import Any

import pytest

from classifier.decision import Decision, Exclusion, PolicyInputs, Prediction
from gateway.inference.exclusions import DOWN, is_below_target
from quality.records.record import Attempt
from tests.quality.store.records import make_record

STRONGEST_DOWN = [Exclusion(4, DOWN)]


def answered(tier: int = 1, attempts: list[Attempt] | None = None, **inputs: Any) -> bool:
    given = {
        "prediction": Prediction(p_ok=[0.38, 0.5, 0.6, 1.0], kind="measured", classifier_version="v1", novelty=0.0),
        "costs": [0.01, 0.02, 0.03, 0.04],
        "quality_target": 0.7,
        "tau": 0.7,
        "objective": "utility",
        "exclusions": STRONGEST_DOWN,
    } | inputs
    decision = Decision(tier=tier, reason="", scores=[None] * 4, inputs=PolicyInputs(**given))
    return is_below_target(make_record(decision=decision, tier=tier, attempts=attempts or []))


@pytest.mark.parametrize(
    ("given", "is_below"),
    [
        ({}, True),
        ({"objective": "target"}, True),
        ({"quality_target": 0.3}, False),  # good enough
        ({"exclusions": []}, False),
        ({"exclusions": [Exclusion(4, "it does not support images")]}, False),
        ({"pinned_tier": 1}, False),  # as asked
        ({"reference_usd": 0.001}, False),  # the strongest would not have been worth its price
        ({"exclusions": [], "attempts": [Attempt(tier=4, model="m", status="error", cost_usd=0.0)]}, True),
        ({"exclusions": [], "attempts": [Attempt(tier=4, model="m", status="escalated", cost_usd=0.0)]}, False),
    ],
)
def test_an_answer_is_below_its_target_where_a_better_tier_was_away(given: dict[str, Any], is_below: bool) -> None:
    assert answered(**given) is is_below
