"""The policy: what is chosen, what never is, and that a decision replays."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier.decision import ConstantTier, Decision, EdgePath, Exclusion, PolicyInputs, Prediction
from classifier.errors import NoTierAllowedError, PolicyInputsError
from classifier.policy.decide import barred_tiers, decide, may_answer

probability = st.floats(0, 1, allow_nan=False)


@st.composite
def policy_inputs(draw: st.DrawFn, constrained: bool = True) -> PolicyInputs:
    steps = draw(st.lists(st.just(0.0) | st.floats(1e-6, 10), min_size=3, max_size=3))
    first = draw(st.floats(1e-6, 10))
    costs = [first + sum(steps[:k]) for k in range(4)]
    p_ok = [*draw(st.lists(probability, min_size=3, max_size=3)), 1.0]
    barred = draw(st.lists(st.integers(1, 4), unique=True)) if constrained else []
    return PolicyInputs(
        prediction=Prediction(p_ok=p_ok, kind="prior", novelty=0.1, classifier_version="t"),
        costs=costs,
        quality_target=0.9,
        tau=draw(probability),
        min_tier=draw(st.none() | st.integers(1, 4)) if constrained else None,
        max_cost_usd=draw(st.none() | st.floats(0, 40)) if constrained else None,
        exclusions=[Exclusion(tier=t, reason="down") for t in barred],
        edge=draw(st.none() | st.builds(edge_on, st.integers(1, 4))) if constrained else None,
    )


def edge_on(tier: int) -> EdgePath:
    return EdgePath(tier=tier, prompt_tokens=7, max_prompt_tokens=29, new_tokens=8, max_new_tokens=16)


def example(**changes: object) -> PolicyInputs:
    base = PolicyInputs(
        prediction=Prediction(p_ok=[0.5, 0.8, 0.9, 1.0], kind="measured", novelty=0.1, classifier_version="t"),
        costs=[0.001, 0.0025, 0.01, 0.03],
        quality_target=0.9,
        tau=0.75,
    )
    return msgspec.structs.replace(base, **changes)


def decided(inputs: PolicyInputs) -> Decision | None:
    try:
        return decide(inputs)
    except NoTierAllowedError:
        return None


@given(policy_inputs(), st.floats(0, 1))
def test_a_higher_quality_target_never_lowers_the_tier(inputs: PolicyInputs, other_tau: float) -> None:
    """RT-05: a higher target means a larger tau."""
    loose, strict = sorted((inputs.tau, other_tau))
    cheap, good = (decided(msgspec.structs.replace(inputs, tau=tau)) for tau in (loose, strict))
    assert (cheap is None) == (good is None)
    if cheap is not None and good is not None:
        assert good.tier >= cheap.tier


@given(policy_inputs())
def test_a_tier_that_a_constraint_rules_out_is_never_chosen(inputs: PolicyInputs) -> None:
    decision = decided(inputs)
    barred = {e.tier for e in inputs.exclusions}
    if decision is None:
        return
    assert decision.tier not in barred
    assert inputs.min_tier is None or decision.tier >= inputs.min_tier
    assert inputs.max_cost_usd is None or inputs.costs[decision.tier - 1] <= inputs.max_cost_usd
    assert all(decision.scores[t - 1] is None for t in barred)


@given(policy_inputs(constrained=False))
def test_the_cheapest_tier_that_is_good_enough_answers_and_has_the_least_score(inputs: PolicyInputs) -> None:
    decision = decide(inputs)
    assert decision.tier == next(k for k in range(1, 5) if inputs.prediction.p_ok[k - 1] >= inputs.tau)
    scores = [score for score in decision.scores if score is not None]
    assert scores[decision.tier - 1] == min(scores)


@given(policy_inputs())
def test_a_recorded_decision_replays_to_the_same_decision(inputs: PolicyInputs) -> None:
    decision = decided(inputs)
    if decision is None:
        return
    stored = msgspec.json.decode(msgspec.json.encode(decision), type=Decision)
    assert decide(stored.inputs) == decision


def test_a_prompt_that_every_tier_answers_alike_goes_to_the_cheapest() -> None:
    prediction = Prediction(p_ok=[1.0, 1.0, 1.0, 1.0], kind="measured", novelty=0, classifier_version="t")
    assert decide(example(prediction=prediction)).tier == 1


def test_the_strongest_allowed_tier_answers_when_none_reaches_tau() -> None:
    inputs = example(tau=0.95, exclusions=[Exclusion(tier=4, reason="down")])
    decision = decide(inputs)
    assert decision.tier == 3
    assert "no allowed tier reaches P(good enough)" in decision.reason


def test_among_equally_priced_tiers_the_lowest_good_enough_number_answers() -> None:
    same = {"costs": [0.01] * 4}
    assert decide(example(**same, tau=0.75)).tier == 2
    assert decide(example(**same, tau=0.2)).tier == 1


def test_among_equally_priced_tiers_below_tau_the_highest_number_answers() -> None:
    inputs = example(costs=[0.01] * 4, tau=0.95, exclusions=[Exclusion(tier=4, reason="down")])
    assert decide(inputs).tier == 3


def test_a_pinned_tier_is_chosen_whatever_it_scores() -> None:
    decision = decide(example(pinned_tier=1))
    assert decision.tier == 1
    assert decision.reason.startswith("pinned to tier 1")


@pytest.mark.parametrize(("floor", "named"), [("min_tier", "the request asks"), ("key_min_tier", "the key asks")])
@pytest.mark.parametrize("least", [1, 2, 3, 4])
def test_a_floor_bars_the_tiers_below_it_and_no_other(floor: str, named: str, least: int) -> None:
    barred = barred_tiers(example(**{floor: least}))
    assert barred == dict.fromkeys(range(1, least), f"{named} for at least tier {least}")


def test_with_every_tier_excluded_the_error_gives_each_reason() -> None:
    inputs = example(pinned_tier=2, exclusions=[Exclusion(tier=2, reason="context of 2048 tokens is too short")])
    with pytest.raises(NoTierAllowedError, match="tier 2: context of 2048 tokens is too short") as caught:
        decide(inputs)
    assert [e.tier for e in caught.value.exclusions] == [1, 2, 3, 4]


def test_the_reason_names_the_tiers_that_were_ruled_out_and_that_it_is_a_prior() -> None:
    prediction = Prediction(p_ok=[0.9, 0.9, 0.9, 1.0], kind="prior", novelty=0, classifier_version="t")
    reason = decide(example(prediction=prediction, max_cost_usd=0.005)).reason
    assert "a first estimate" in reason
    assert "not tier 4: the predicted cost of $0.030000 is above the maximum $0.005000" in reason


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"costs": [2.0, 1.0, 2.0, 3.0]}, "not fall with the tier"),
        ({"costs": [1.0, 2.0]}, "same number"),
        ({"costs": [-1.0, 2.0, 3.0, 4.0]}, "at least 0"),
        ({"tau": 1.5}, "tau"),
        ({"pinned_tier": 5}, "pinned_tier"),
        ({"min_tier": 0}, "min_tier"),
        ({"exclusions": [Exclusion(tier=9, reason="x")]}, "exclusion of tier 9"),
    ],
)
def test_inputs_without_meaning_are_refused_by_name(changes: dict[str, object], named: str) -> None:
    with pytest.raises(PolicyInputsError, match=named):
        decide(example(**changes))


@given(policy_inputs(), st.integers(1, 4))
def test_in_observe_mode_the_decision_is_recorded_and_one_tier_answers(inputs: PolicyInputs, observed: int) -> None:
    held = decided(inputs)
    watched = decided(msgspec.structs.replace(inputs, observe_tier=observed))
    if held is None:
        assert watched is None
        return
    assert watched is not None
    assert (watched.would_be, watched.scores) == (held.tier, held.scores)
    assert held.reason in watched.reason
    allowed = set(range(1, 5)) - set(barred_tiers(inputs))
    assert watched.tier == min((k for k in allowed if k >= observed), default=max(allowed))


@given(policy_inputs())
def test_the_fast_paths_tier_is_chosen_wherever_it_may_answer_and_nowhere_else(inputs: PolicyInputs) -> None:
    decision = decided(inputs)
    if decision is not None and inputs.edge is not None:
        assert decision.by_edge == may_answer(inputs, inputs.edge.tier)


def test_a_decision_that_an_earlier_release_stored_still_decodes_with_its_reason() -> None:
    """Of the lambda rule, with the novelty fallback and lowered by recent outcomes: fields that are gone."""
    stored = msgspec.to_builtins(decide(example()))
    stored["inputs"] |= {"rule": "lambda", "lambda_": 0.3, "novelty_threshold": 0.98, "safe_tier": 4}
    stored["inputs"]["prediction"]["p_ok_before"] = [0.9, 0.95, 0.95, 1.0]
    stored |= {"tier": 3, "reason": "promoted from tier 1: tier 3 has the least expected loss"}
    read = msgspec.json.decode(msgspec.json.encode(stored), type=Decision)
    assert (read.tier, read.reason) == (3, "promoted from tier 1: tier 3 has the least expected loss")
    assert decide(read.inputs) == decide(example())


def test_the_cheapest_that_may_answer_is_taken_where_that_is_asked_for_and_floors_and_pins_still_hold() -> None:
    housekeeping = example(cheapest="housekeeping of codex", constant=ConstantTier(tier=3, meets=1.0))
    assert (decide(housekeeping).tier, housekeeping.is_constant) == (1, False)
    assert decide(housekeeping).reason.startswith("housekeeping of codex: tier 1 is the cheapest tier that may answer")
    assert decide(msgspec.structs.replace(housekeeping, min_tier=2)).tier == 2
    assert decide(msgspec.structs.replace(housekeeping, pinned_tier=3)).reason == "pinned to tier 3"
    watched = decide(msgspec.structs.replace(housekeeping, observe_tier=4))
    assert (watched.tier, watched.would_be) == (4, 1)
