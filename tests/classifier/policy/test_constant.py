"""A constant tier in place of routing: when it decides, what it respects, and that routing's choice stays known."""

from typing import Any

import msgspec
import pytest

from classifier.decision import ConstantTier, EdgePath, Exclusion, PolicyInputs, Prediction
from classifier.policy.decide import constant_choices, decide, routed_choice


def inputs(constant: ConstantTier | None = None, **more: Any) -> PolicyInputs:
    prediction = Prediction(p_ok=[0.9, 0.95, 1.0], kind="measured", novelty=0.0, classifier_version="v")
    given = {"quality_target": 0.7, "tau": 0.7} | more
    return PolicyInputs(prediction=prediction, costs=[1.0, 2.0, 9.0], constant=constant, **given)


SECOND = ConstantTier(tier=2, meets=0.8)


def test_a_constant_answers_in_place_of_routing_and_the_reason_says_why() -> None:
    decision = decide(inputs(SECOND))

    assert decision.tier == 2
    assert decision.reason.startswith("constant: tier 2 answers, because routing does not pay here")
    assert routed_choice(decision.inputs) == 1


@pytest.mark.parametrize(
    "more",
    [{"quality_target": 0.85}, {"pinned_tier": 1}, {"experiment_id": "e", "arm": "a", "arm_tier": 1}],
    ids=["a higher target", "a pinned tier", "an experiment"],
)
def test_a_constant_does_not_decide(more: dict[str, Any]) -> None:
    with_one, without = decide(inputs(SECOND, **more)), decide(inputs(**more))

    assert with_one.tier == without.tier == 1
    assert with_one.reason == without.reason


def test_a_constant_that_is_excluded_gives_way_to_the_next_tier_up() -> None:
    down = [Exclusion(tier=2, reason="it is down")]

    decision = decide(inputs(SECOND, exclusions=down))

    assert decision.tier == 3
    assert "not tier 2: it is down" in decision.reason
    assert constant_choices(decision.inputs) == [1, 3, 3]


def test_a_tool_loop_keeps_its_tier_under_a_constant() -> None:
    assert decide(inputs(SECOND, previous_tier=3, in_tool_loop=True)).tier == 3


def test_a_constant_precedes_the_fast_path() -> None:
    edge = EdgePath(tier=1, prompt_tokens=3, max_prompt_tokens=9, new_tokens=3, max_new_tokens=9)

    decision = decide(inputs(SECOND, edge=edge))

    assert decision.tier == 2
    assert not decision.by_edge
    assert not decide(inputs(ConstantTier(tier=1, meets=0.8), edge=edge)).by_edge


def test_a_decision_with_a_constant_is_replayed_from_its_stored_inputs() -> None:
    decision = decide(inputs(SECOND))

    stored = msgspec.json.decode(msgspec.json.encode(decision.inputs), type=PolicyInputs)

    assert decide(stored) == decision
