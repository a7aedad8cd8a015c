"""What a decision says of itself: for each way in which a tier can be chosen, its whole reason."""

from typing import Any

import msgspec
import pytest

from classifier.decision import EdgePath, Exclusion, PolicyInputs, Prediction, RuledBy, SessionStep
from classifier.errors import PolicyInputsError
from classifier.policy.decide import decide, may_answer

MEASURED = Prediction(p_ok=[0.5, 0.8, 0.9, 1.0], kind="measured", novelty=0.1, classifier_version="v7")
CHEAPEST = "tier 2 is the cheapest with P(good enough) 0.800 >= 0.750"
OF_ARM = " (arm a of experiment e)"
ARM = {"experiment_id": "e", "arm": "a"}
CLASSES = [0.1, 0.6, 0.2, 0.1]
KEPT = "the session stays on tier 3, because the rest of it costs least there"
GOOD_ENOUGH = "tier 2 is the cheapest with P(good enough) 0.80 >= 0.75"


def given(**changes: Any) -> PolicyInputs:
    """Changes of a field of the prediction are of the prediction."""
    predicted = {name: changes.pop(name) for name in list(changes) if name in Prediction.__struct_fields__}
    base = PolicyInputs(prediction=MEASURED, costs=[0.001, 0.0025, 0.01, 0.03], quality_target=0.9, tau=0.75)
    return msgspec.structs.replace(base, prediction=msgspec.structs.replace(MEASURED, **predicted), **changes)


def down(*tiers: int) -> list[Exclusion]:
    return [Exclusion(tier=tier, reason="down") for tier in tiers]


def session(previous: int, rest_usd: list[float]) -> SessionStep:
    return SessionStep(
        session="5", client="codex", step=3, loop_step=1, at="turn", previous=previous, rest_usd=rest_usd, rule="rest"
    )


EDGE = EdgePath(tier=1, prompt_tokens=7, max_prompt_tokens=29, new_tokens=8, max_new_tokens=16)


@pytest.mark.parametrize(
    ("changes", "tier", "reason"),
    [
        ({}, 2, CHEAPEST),
        ({"tau": 0.8}, 2, "tier 2 is the cheapest with P(good enough) 0.800 >= 0.800"),
        ({"tau": 0.95, "exclusions": down(4)}, 3,
         "no allowed tier reaches P(good enough) 0.950; tier 3 is the strongest allowed; not tier 4: down"),
        ({"max_cost_usd": 0.01}, 2,
         f"{CHEAPEST}; not tier 4: the predicted cost of $0.030000 is above the maximum $0.010000"),
        ({"fell_over": "its server failed"}, 2, f"{CHEAPEST}; its server failed"),
        ({"private": "a mark"}, 2, f"private (a mark): {CHEAPEST}"),
        ({"canary": True}, 2, f"{CHEAPEST} (version v7 on trial)"),
        ({"kind": "heuristic"}, 2, f"{CHEAPEST} (judged by the prompt's length, because the classifier failed)"),
        ({"kind": "prior"}, 2, f"{CHEAPEST} (a first estimate: this catalogue has no measured outcomes yet)"),
        ({"kind": "prior", "labels": [0.0] * 4}, 2, CHEAPEST),
        # An experiment's arm.
        (ARM, 2, CHEAPEST + OF_ARM),
        ({**ARM, "arm_tier": 3}, 3, "the experiment sends the request to tier 3" + OF_ARM),
        ({**ARM, "arm_tier": 3, "exclusions": down(3)}, 2, f"{CHEAPEST}{OF_ARM}; not tier 3: down"),
        # An operator's rule.
        ({"rules": RuledBy(names=["r", "s"])}, 2, f"{CHEAPEST}; matching rules: r, s"),
        ({"rules": RuledBy(names=["r"], tier=3)}, 3, "a rule sends the request to tier 3; matching rules: r"),
        ({"rules": RuledBy(names=["r"], tier=3, target="t")}, 3,
         "a rule sends the request to tier 3 (target t); matching rules: r"),
        ({"rules": RuledBy(names=["r"], tier=3), "exclusions": down(3)}, 2,
         f"{CHEAPEST}; not tier 3: down; matching rules: r"),
        ({"rules": RuledBy(names=["r"], tier=3), "pinned_tier": 1}, 1, "pinned to tier 1; matching rules: r"),
        # The fast path.
        ({"edge": EDGE}, 1, "fast path: the prompt has 7 tokens (limit 29) and the answer at most 8 (limit 16), "
         "so tier 1 answers without the classifier"),
        ({"edge": EDGE, "exclusions": down(1)}, 2, f"{CHEAPEST}; not tier 1: down"),
        # Holds leave one, or more than one; exclusions alone leave one.
        ({"previous_tier": 2, "in_tool_loop": True, "exclusions": down(4)}, 2, "tier 2 is the only tier left, with "
         "P(good enough) 0.800; not tier 4: down; not tiers 1, 3: the tool loop stays on tier 2"),
        ({"predicted_waits": [3.0, 0.0, 0.0, 0.0], "most_wait_seconds": 2.0}, 2,
         f"{CHEAPEST}; not tier 1: its queue takes 3.0 s, and tier 4 has a shorter one"),
        ({"exclusions": down(1, 3, 4)}, 2, f"{CHEAPEST}; not tier 1: down; not tier 3: down; not tier 4: down"),
        # Complexity classes.
        ({"classes": CLASSES}, 2, f"MEDIUM (0.60): {GOOD_ENOUGH}; $0.002500 instead of $0.030000"),
        ({"classes": CLASSES, "tau": 0.8}, 2, "MEDIUM (0.60): tier 2 is the cheapest with P(good enough) "
         "0.80 >= 0.80; $0.002500 instead of $0.030000"),
        ({"classes": CLASSES, "labels": [9.0, 20.0, 7.0, 3.0], "good_labels": [1.0, 17.0, 6.0, 3.0]}, 2,
         f"MEDIUM (0.60): tier 2 was good enough for 17 of 20 such prompts; {GOOD_ENOUGH}; "
         "$0.002500 instead of $0.030000"),
        ({"classes": CLASSES, "labels": [9.0, 20.0], "good_labels": [1.0, 17.0], "tau": 0.85}, 3,
         "MEDIUM (0.60): tier 3 is the cheapest with P(good enough) 0.90 >= 0.85; "
         "$0.010000 instead of $0.030000"),
        ({"classes": CLASSES, "labels": [9.0, 20.0], "good_labels": [1.0, 17.0]}, 2,
         f"MEDIUM (0.60): tier 2 was good enough for 17 of 20 such prompts; {GOOD_ENOUGH}; "
         "$0.002500 instead of $0.030000"),
        ({"classes": CLASSES, "tau": 0.95}, 4,
         "MEDIUM (0.60): tier 4 is the cheapest with P(good enough) 1.00 >= 0.95"),
        ({"classes": CLASSES, "tau": 0.95, "exclusions": down(4)}, 3,
         "MEDIUM (0.60): no allowed tier reaches P(good enough) 0.95, and tier 3 is the strongest allowed; "
         "$0.010000 instead of $0.030000; not tier 4: down"),
        # A session stays where its rest costs least, or goes there.
        ({"session": session(3, [0.01, 0.03, 0.02, 0.1])}, 3,
         f"{KEPT}; the rest of the session costs $0.020000 there"),
        ({"session": session(3, [0.01, 0.03, 0.02, 0.1]), "classes": CLASSES}, 3,
         f"{KEPT}; the rest of the session costs $0.020000 there"),
        ({"session": session(3, [0.01, 0.03, 0.02, 0.1]), "tau": 0.8}, 3,
         f"{KEPT}; the rest of the session costs $0.020000 there"),
        ({"session": session(2, [0.01, 0.02, 0.03, 0.1])}, 2,
         f"{CHEAPEST}; the rest of the session costs $0.020000 there"),
        ({"session": session(1, [0.01, 0.02, 0.03, 0.1]), "tau": 0.4}, 1,
         "tier 1 is the cheapest with P(good enough) 0.500 >= 0.400; the rest of the session costs $0.010000 there"),
        ({"session": session(4, [0.01, 0.02, 0.03, 0.1])}, 2,
         f"{CHEAPEST}; the rest of the session costs $0.020000 there, and $0.100000 on tier 4"),
        ({"session": session(4, [0.01, 0.03, 0.02, 0.1])}, 3, "tier 3 is the cheapest with P(good enough) 0.900 >= "
         "0.750; the rest of the session costs $0.020000 there, and $0.100000 on tier 4"),
        # Of tiers that are good enough, though a lower one is: probabilities need not rise.
        ({"session": session(4, [0.01, 0.03, 0.02, 0.1]), "p_ok": [0.5, 0.8, 0.7, 1.0]}, 2,
         f"{CHEAPEST}; the rest of the session costs $0.030000 there, and $0.100000 on tier 4"),
        ({"session": session(4, [0.01, 0.03, 0.02, 0.1]), "p_ok": [0.5, 0.8, 0.75, 1.0]}, 3, "tier 3 is the cheapest "
         "with P(good enough) 0.750 >= 0.750; the rest of the session costs $0.020000 there, and $0.100000 on tier 4"),
        # On equal costs the session's own tier, then the lower one.
        ({"session": session(3, [0.01, 0.02, 0.02, 0.1])}, 3,
         f"{KEPT}; the rest of the session costs $0.020000 there"),
        ({"session": session(4, [0.01, 0.02, 0.02, 0.1])}, 2,
         f"{CHEAPEST}; the rest of the session costs $0.020000 there, and $0.100000 on tier 4"),
    ],
)  # fmt: skip
def test_a_decision_says_how_its_tier_was_chosen(changes: dict[str, Any], tier: int, reason: str) -> None:
    decision = decide(given(**changes))
    assert (decision.tier, decision.reason) == (tier, reason)


def test_a_score_is_the_share_of_the_dearest_cost_or_two_less_that_below_the_target() -> None:
    scores = decide(given(exclusions=down(3))).scores
    assert scores == [2.0 - 0.001 / 0.03, 0.0025 / 0.03, None, 1.0]


def test_tiers_that_exist_and_are_neither_excluded_nor_held_back_may_answer() -> None:
    waiting = given(predicted_waits=[3.0, 0.0, 0.0, 0.0], most_wait_seconds=2.0)
    assert [tier for tier in range(7) if may_answer(given(), tier)] == [1, 2, 3, 4]
    assert [tier for tier in range(7) if may_answer(given(exclusions=down(3)), tier)] == [1, 2, 4]
    assert [tier for tier in range(7) if may_answer(waiting, tier)] == [2, 3, 4]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"p_ok": [0.5, 0.8, 1.2, 1.0]}, r"probabilities lie in \[0, 1\]"),
        ({"costs": [0.0, 0.0, 0.0, 0.0]}, "the strongest tier's cost is 0.0"),
        ({"costs": [0.0, 0.0, 0.0, float("inf")]}, "must be finite"),
    ],
)
def test_predictions_and_costs_without_meaning_are_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(PolicyInputsError, match=named):
        decide(given(**changes))


def test_all_tiers_but_the_strongest_may_cost_nothing() -> None:
    assert decide(given(costs=[0.0, 0.0, 0.0, 1.0])).tier == 2


def test_what_was_not_read_of_the_turn_is_said() -> None:
    reason = decide(given(material=["log", "table"])).reason
    assert reason == f"{CHEAPEST} (read without its log and table)"
