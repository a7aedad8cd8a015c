"""What is held back: a conversation from tiers that would have to read it again, and a request from long queues."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from classifier.class_predictor import threshold_of
from classifier.decision import Decision, Exclusion, PolicyInputs, Prediction, SessionStep
from classifier.errors import NoTierAllowedError, PolicyInputsError
from classifier.policy.decide import barred_tiers, decide, held_back
from tests.examples import examples

COSTS = [0.001, 0.0025, 0.01, 0.03]


def example(*, novelty: float = 0.1, p_ok: tuple[float, ...] = (0.99, 0.99, 0.99, 1.0), **changes: Any) -> PolicyInputs:
    base = PolicyInputs(
        prediction=Prediction(p_ok=list(p_ok), kind="measured", novelty=novelty, classifier_version="t"),
        costs=COSTS,
        quality_target=0.9,
        tau=0.75,
    )
    return msgspec.structs.replace(base, **changes)


def test_a_tool_loop_keeps_its_tier_up_and_down() -> None:
    for previous in (1, 2, 3, 4):
        for p_ok in ((0.99, 0.99, 0.99, 1.0), (0.01, 0.01, 0.01, 1.0)):
            decision = decide(example(previous_tier=previous, in_tool_loop=True, p_ok=p_ok))
            assert decision.tier == previous
            assert f"the tool loop stays on tier {previous}" in decision.reason


def test_a_tool_loop_whose_tier_is_down_continues_on_another_tier() -> None:
    down = [Exclusion(tier=2, reason="the tier is down")]
    assert decide(example(previous_tier=2, in_tool_loop=True, exclusions=down)).tier == 1


def test_a_held_back_tier_may_still_take_over_when_the_tier_fails() -> None:
    assert barred_tiers(example(previous_tier=2, in_tool_loop=True)) == {}


def test_a_conversation_moves_up_freely() -> None:
    assert decide(example(previous_tier=1, reuse_usd=[0.0009, 0, 0, 0], p_ok=(0.1, 0.2, 0.3, 1.0))).tier == 4


def test_a_conversation_moves_down_only_when_that_saves_more_than_reading_it_again_costs() -> None:
    """Going on at tier 3 costs what is left of its price; going down costs all of the cheaper tier's."""
    stays = decide(example(previous_tier=3, reuse_usd=[0, 0, 0.0095, 0]))
    assert stays.tier == 3
    assert "the conversation is on tier 3: to continue there costs $0.000500, and to read" in stays.reason
    assert decide(example(previous_tier=3, reuse_usd=[0, 0, 0.0080, 0])).tier == 1
    assert decide(example(previous_tier=3, reuse_usd=[-0.0020, -0.0020, 0.0080, 0])).tier == 3, "writing a cache costs"
    assert decide(example(previous_tier=3, reuse_usd=[0.0009, 0, 0.0095, 0])).tier == 1, "it shares the cache"


def test_a_conversation_whose_tier_is_not_allowed_is_not_held() -> None:
    down = [Exclusion(tier=3, reason="down")]
    assert decide(example(previous_tier=3, reuse_usd=[0, 0, 0.0095, 0], exclusions=down)).tier == 1


@pytest.mark.parametrize(
    ("waits", "changes", "chosen"),
    [
        ([3.0, 0.0, 0.0, 0.0], {}, 2),
        ([2.0, 0.0, 0.0, 0.0], {}, 1),  # not longer than the knob
        ([9.0, 9.0, 0.0, 0.0], {}, 3),
        ([9.0, 9.0, 9.0, 9.0], {}, 1),  # nothing is gained
        ([0.0, 0.0, 0.0, 9.0], {"p_ok": (0.1, 0.1, 0.1, 1.0)}, 4),  # never to a lower tier
        ([9.0, 0.0, 0.0, 0.0], {"p_ok": (0.9, 0.1, 0.1, 1.0)}, 4),  # nor to one that is not good enough
        ([9.0, 0.0, 0.0, 0.0], {"previous_tier": 1, "in_tool_loop": True}, 1),
        ([9.0, 0.0, 0.0, 0.0], {"pinned_tier": 1}, 1),
        ([9.0, 0.0, 0.0, 0.0], {"most_wait_seconds": None}, 1),
        ([0.0, 0.0, 9.0, 0.0], {"previous_tier": 3, "reuse_usd": [0, 0, 0.0095, 0]}, 4),
        ([0.0, 0.0, 9.0, 9.0], {"previous_tier": 3, "reuse_usd": [0, 0, 0.0095, 0]}, 3),
    ],
)
def test_a_tier_with_a_long_queue_gives_way_to_a_higher_one_with_a_shorter(
    waits: list[float], changes: dict[str, Any], chosen: int
) -> None:
    given: dict[str, Any] = {"predicted_waits": waits, "most_wait_seconds": 2.0} | changes
    assert decide(example(**given)).tier == chosen


def test_the_reason_names_the_queue() -> None:
    reason = decide(example(predicted_waits=[3.0, 0.0, 0.0, 0.0], most_wait_seconds=2.0)).reason
    assert "; not tier 1: its queue takes 3.0 s, and tier 4 has a shorter one" in reason


def test_nothing_is_held_back_from_a_pinned_request() -> None:
    assert held_back(example(pinned_tier=2, previous_tier=3, in_tool_loop=True), [2]) == {}


def test_the_highest_tier_whose_queue_is_not_longer_than_the_most_is_waited_for() -> None:
    waiting = example(predicted_waits=[9.0, 2.0, 9.0, 9.0], most_wait_seconds=2.0)
    assert held_back(waiting, [1, 2, 3, 4]) == {1: "its queue takes 9.0 s, and tier 2 has a shorter one"}


def test_without_known_savings_a_conversation_moves_down_where_that_is_cheaper_and_not_where_it_costs_the_same() -> (
    None
):
    assert decide(example(previous_tier=3)).tier == 1
    same = held_back(example(previous_tier=3, costs=[0.001, 0.01, 0.01, 0.03]), [1, 2, 3, 4])
    assert same == {
        2: "the conversation is on tier 3: to continue there costs $0.010000, and to read it again here costs $0.010000"
    }


PARENT = "the parent of this agent is on tier"


@pytest.mark.parametrize(
    ("changes", "allowed", "held"),
    [
        ({"rule": "free"}, [1, 2, 3, 4], {}),
        ({"rule": "free", "floor": 3}, [1, 2, 3, 4], {1: f"{PARENT} 3", 2: f"{PARENT} 3"}),
        # A parent above all that may answer leaves the highest.
        ({"rule": "free", "floor": 4}, [1, 2, 3], {1: f"{PARENT} 4", 2: f"{PARENT} 4"}),
        ({"rule": "stay"}, [1, 2, 3, 4], {1: "why", 3: "why", 4: "why"}),
        ({"rule": "stay", "floor": 2}, [1, 2, 3, 4], {1: f"{PARENT} 2", 3: "why", 4: "why"}),
        ({"rule": "rest"}, [1, 2, 3, 4], {}),
        ({"rule": "keep"}, [1, 2, 3, 4], {1: "why"}),
        ({"rule": "up"}, [1, 2, 3, 4], {1: "why", 2: "why"}),
        # Where the session's own tier may not answer, none below it does, unless there is no other.
        ({"rule": "stay"}, [1, 3, 4], {1: "why"}),
        ({"rule": "rest"}, [1, 3, 4], {1: "why"}),
        ({"rule": "stay", "previous": 4}, [1, 2, 3], {1: "why", 2: "why"}),
        ({"rule": "up", "previous": 4}, [1, 2, 4], {1: "why", 2: "why"}),
    ],
)
def test_an_agents_session_holds_back_what_its_rule_says(
    changes: dict[str, Any], allowed: list[int], held: dict[int, str]
) -> None:
    step = SessionStep(session="5", client="codex", step=3, loop_step=1, at="loop", previous=2, because="why")
    inputs = example(session=msgspec.structs.replace(step, **changes), previous_tier=4, in_tool_loop=True)
    assert held_back(inputs, allowed) == held


@pytest.mark.parametrize("rule", ["free", "rest"])
def test_a_session_that_may_move_avoids_long_queues_above_its_parents_tier(rule: Any) -> None:
    step = SessionStep(
        session="5", client="codex", step=3, loop_step=1, at="turn", previous=2, because="why", rule=rule, floor=2
    )
    waiting = example(session=step, predicted_waits=[0.0, 3.0, 0.0, 9.0], most_wait_seconds=2.0)
    assert held_back(waiting, [1, 2, 3, 4]) == {
        1: f"{PARENT} 2", 2: "its queue takes 3.0 s, and tier 3 has a shorter one"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"previous_tier": 0}, "previous_tier"),
        ({"reuse_usd": [1.0]}, "reuse_usd"),
        ({"most_wait_seconds": 1.0}, "predicted_waits"),
    ],
)
def test_circumstances_without_meaning_are_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(PolicyInputsError, match=named):
        decide(example(**changes))


def test_a_decision_recorded_before_conversations_still_replays() -> None:
    old = decide(example())
    stored = msgspec.json.decode(msgspec.json.encode(old))
    for name in ("previous_tier", "reuse_usd", "in_tool_loop", "canary", "most_wait_seconds"):
        del stored["inputs"][name]
    del stored["inputs"]["prediction"]["predicted_tokens"]
    read = msgspec.convert(stored, Decision)
    assert decide(read.inputs) == read == old


@st.composite
def circumstances(draw: st.DrawFn) -> PolicyInputs:
    steps = draw(st.lists(st.floats(1e-6, 10), min_size=4, max_size=4))
    costs = [sum(steps[: k + 1]) for k in range(4)]
    p_ok = [*draw(st.lists(st.floats(0, 1), min_size=3, max_size=3)), 1.0]
    return PolicyInputs(
        prediction=Prediction(p_ok=p_ok, kind="prior", novelty=draw(st.floats(0, 1)), classifier_version="t"),
        costs=costs,
        quality_target=0.9,
        tau=1.0,
        min_tier=draw(st.none() | st.integers(1, 4)),
        max_cost_usd=draw(st.none() | st.floats(0, 40)),
        exclusions=[Exclusion(tier=t, reason="down") for t in draw(st.lists(st.integers(1, 4), unique=True))],
        previous_tier=draw(st.none() | st.integers(1, 4)),
        in_tool_loop=draw(st.booleans()),
        reuse_usd=draw(st.just([]) | st.lists(st.floats(-20, 20), min_size=4, max_size=4)),
        predicted_waits=draw(st.lists(st.floats(0, 5), min_size=4, max_size=4)),
        most_wait_seconds=draw(st.none() | st.floats(0, 5)),
    )


@settings(max_examples=examples(300), deadline=None)
@given(circumstances(), st.lists(st.floats(0, 1), min_size=2, max_size=5))
def test_raising_the_target_never_lowers_a_tier(inputs: PolicyInputs, targets: list[float]) -> None:
    chosen = []
    for target in sorted(targets):
        try:
            chosen.append(decide(msgspec.structs.replace(inputs, tau=threshold_of(target))).tier)
        except NoTierAllowedError:
            chosen.append(0)
    assert chosen == sorted(chosen)
