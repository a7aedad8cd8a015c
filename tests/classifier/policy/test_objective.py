"""The objective: what is chosen by it, how the first day fades, and the prices by which routers are compared."""

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier.decision import Decision, Exclusion, PolicyInputs, Prediction, SessionStep
from classifier.errors import PolicyInputsError
from classifier.policy.decide import decide
from classifier.policy.utility import (
    ENOUGH,
    FIRST_LABELS,
    enough_of,
    first_day_choice,
    highest_utility,
    reference_prices,
    utility,
)

MEASURED = Prediction(p_ok=[0.5, 0.8, 0.9, 1.0], kind="measured", novelty=0.1, classifier_version="v7")


def inputs(**changes: Any) -> PolicyInputs:
    """Changes of a field of the prediction are of the prediction."""
    predicted = {name: changes.pop(name) for name in list(changes) if name in Prediction.__struct_fields__}
    base = PolicyInputs(
        prediction=MEASURED, costs=[0.001, 0.0025, 0.01, 0.03], quality_target=0.7, tau=0.7, objective="utility"
    )
    return msgspec.structs.replace(base, prediction=msgspec.structs.replace(MEASURED, **predicted), **changes)


def session(previous: int, rest_usd: list[float], rest_steps: float = 1.0) -> SessionStep:
    return SessionStep(
        session="5", client="codex", step=3, loop_step=1, at="turn", previous=previous, rest_usd=rest_usd,
        rest_steps=rest_steps, rule="rest",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "tier"),
    [
        # 0.49, 0.775, 0.8, 0.7.
        ({}, 3),
        # A strongest answer is worth 50 points, then 5.
        ({"quality_target": 0.5}, 2),
        ({"quality_target": 0.95}, 4),
        ({"quality_target": 1.0}, 4),
        # The same prompt, where a strongest answer usually costs a tenth, or ten times as much.
        ({"reference_usd": 0.003}, 2),
        ({"reference_usd": 0.3}, 4),
        # Ten times as long as usual: the cheapest.
        ({"reference_usd": 0.0003}, 1),
        ({"exclusions": [Exclusion(tier=3, reason="down")]}, 2),
        ({"max_cost_usd": 0.001}, 1),
        # Equal utilities: the cheapest.
        ({"p_ok": [1.0] * 4, "costs": [0.01] * 4}, 1),
        ({"p_ok": [0.8, 0.8, 0.8, 1.0], "costs": [0.01, 0.01, 0.01, 0.1]}, 1),
        # A session's steps cost with its caches: on tier 2 a thirtieth of tier 3; on equal utilities it stays.
        ({"session": session(2, [0.03, 0.01, 0.3, 0.9], 30.0)}, 3),
        ({"session": session(2, [0.03, 0.01, 0.6, 0.9])}, 2),
        ({"session": session(3, [0.01] * 4), "p_ok": [0.9, 0.9, 0.9, 0.9]}, 3),
        ({"session": session(2, [0.01] * 4), "p_ok": [0.9, 0.9, 0.9, 0.9]}, 2),
    ],
)
def test_the_tier_whose_answer_is_worth_most_answers(changes: dict[str, Any], tier: int) -> None:
    assert decide(inputs(**changes)).tier == tier


def test_the_scores_are_utilities_and_the_reason_says_what_a_strongest_answer_is_worth() -> None:
    decision = decide(inputs(reference_usd=0.02, exclusions=[Exclusion(tier=4, reason="down")]))
    assert decision.scores == pytest.approx([0.5 - 0.3 * 0.05, 0.8 - 0.3 * 0.125, 0.9 - 0.3 * 0.5, None])
    assert decision.reason == (
        "tier 2 has the highest utility, with P(good enough) 0.80 for $0.002500; the strongest tier usually costs "
        "$0.020000, which counts as 30 points of P; not tier 4: down"
    )


def test_by_class_the_reason_has_the_class_what_is_known_and_the_objective() -> None:
    known = {"labels": [9.0, 20.0, 7.0, 3.0], "good_labels": [1.0, 17.0, 6.0, 3.0], "classes": [0.1, 0.6, 0.2, 0.1]}
    assert decide(inputs(**known, quality_target=0.5)).reason == (
        "MEDIUM (0.60): tier 2 was good enough for 17 of 20 such prompts; tier 2 has the highest utility, with P(good "
        "enough) 0.80 for $0.002500; the strongest tier usually costs $0.030000, which counts as 50 points of P"
    )


@pytest.mark.parametrize(
    ("prediction", "enough"),
    [
        ({"kind": "prior"}, ENOUGH),
        ({"kind": "prior", "labels": [0.0, 0.0]}, ENOUGH),
        ({"kind": "prior", "labels": [FIRST_LABELS / 2, 1.0]}, (1 + ENOUGH) / 2),
        ({"kind": "prior", "labels": [0.0, FIRST_LABELS]}, 1.0),
        ({"kind": "prior", "labels": [0.0, 300.0]}, 1.0),
        ({"kind": "measured"}, 1.0),
    ],
)
def test_the_first_day_fades_over_the_first_labels(prediction: dict[str, Any], enough: float) -> None:
    assert enough_of(msgspec.structs.replace(MEASURED, **prediction)) == pytest.approx(enough)


def test_on_the_first_day_the_likeliest_class_decides_and_later_what_is_known() -> None:
    prior = {"kind": "prior", "p_ok": [0.85, 0.97, 0.99, 1.0]}
    assert decide(inputs(**prior)).tier == 1
    assert decide(inputs(**prior, labels=[9.0, 9.0, 9.0])).tier == 2
    assert decide(inputs(kind="prior")).tier == 2, "0.5 is not enough, and 0.8 is"


@given(
    st.lists(st.floats(0, 1), min_size=4, max_size=4),
    st.lists(st.floats(1e-6, 1), min_size=4, max_size=4),
    st.floats(1e-4, 10),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_a_higher_quality_target_never_lowers_the_tier(
    p_ok: list[float], costs: list[float], reference: float, one: float, other: float
) -> None:
    """RT-05."""
    asked = inputs(p_ok=p_ok, costs=sorted(costs), reference_usd=reference)
    loose, strict = (msgspec.structs.replace(asked, quality_target=target) for target in sorted((one, other)))
    cheap, good = decide(loose), decide(strict)
    assert good.tier >= cheap.tier or good.scores[good.tier - 1] == pytest.approx(good.scores[cheap.tier - 1])


def test_a_record_of_an_earlier_release_has_the_rule_that_it_used() -> None:
    stored = msgspec.to_builtins(inputs())
    for name in ("objective", "reference_usd"):
        del stored[name]
    old = msgspec.convert(stored, PolicyInputs)
    assert (old.objective, decide(old).tier) == ("target", 2)
    again = msgspec.json.decode(msgspec.json.encode(decide(inputs(reference_usd=0.02))), type=Decision)
    assert decide(again.inputs) == again


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"quality_target": 1.1}, "quality_target is 1.1"), ({"reference_usd": 0.0}, "reference_usd is 0.0"),
     ({"reference_usd": float("inf")}, "reference_usd is inf")],
)  # fmt: skip
def test_an_objective_without_meaning_is_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(PolicyInputsError, match=named):
        decide(inputs(**changes))


def test_up_to_four_tiers_have_the_reference_prices_and_more_are_between_them() -> None:
    assert [reference_prices(tiers).tolist() for tiers in (2, 4)] == [[1.0, 2.5], [1.0, 2.5, 10.0, 30.0]]
    # Two more between each two.
    seven = [1.0, 2.5**0.5, 2.5, 5.0, 10.0, 300**0.5, 30.0]
    assert reference_prices(7).tolist() == pytest.approx(seven)


def test_of_many_prompts_the_columns_are_those_that_decide_picks() -> None:
    prices = np.array([3.0, 15.0, 30.0])
    found = utility(np.array([[0.5, 0.6, 1.0]]), prices, prices[-1], 0.1)
    assert found.tolist() == [pytest.approx([0.49, 0.55, 0.9])]
    assert highest_utility(np.array([[0.95, 0.97, 1.0], [0.1, 0.2, 1.0]]), prices, 0.1).tolist() == [0, 2]
    # Equal utilities: the cheapest.
    assert highest_utility(np.array([[0.0, 0.0, 0.0]]), np.array([1.0, 1.0, 1.0]), 0.1).tolist() == [0]
    rng = np.random.default_rng(0)
    p_ok = np.column_stack((rng.random((50, 3)), np.ones(50)))
    costs = reference_prices(4).tolist()
    for kind, chosen in (
        ("measured", highest_utility(p_ok, reference_prices(4), 0.3)),
        ("prior", first_day_choice(p_ok)),
    ):
        decided = [decide(inputs(p_ok=row, costs=costs, kind=kind)).tier - 1 for row in p_ok.tolist()]
        assert chosen.tolist() == decided
