"""Which cheap tiers are compared, what that is worth, and that they are never asked where it does not pay."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from classifier.decision import Exclusion, PolicyInputs, Prediction, RuledBy
from classifier.policy.agreement import (
    AgreementGroup,
    AgreementPlan,
    AgreementSettings,
    Counted,
    agreed_tier,
    group_of,
    group_to_verify,
    lacks_counts,
    partner_of,
    plan_agreement,
    second_sample_pays,
    worth_of_agreement,
)
from classifier.policy.agreement_counts import (
    AgreementCounts,
    AgreementPlace,
    AgreementRates,
    AgreementTable,
    estimated_rates,
    prior_rates,
)
from classifier.policy.decide import beside_agreement, decide, fallen_over
from classifier.policy.utility import agreement_may_pay
from tests.examples import examples

SETTINGS = AgreementSettings()
KNOWN = AgreementCounts(compared=200.0, agreed=120.0, verified=100.0, lost=1.0)


def example(costs: Sequence[float] = (1.0, 5.0, 30.0), **changes: Any) -> PolicyInputs:
    prediction = Prediction(p_ok=[*[0.8] * (len(costs) - 1), 1.0], kind="measured", novelty=0.0, classifier_version="t")
    base = PolicyInputs(prediction=prediction, costs=list(costs), quality_target=0.9, tau=0.9)
    return msgspec.structs.replace(base, **changes)


def by(*levels: AgreementCounts) -> Counted:
    return lambda tiers: levels


def first_day(low: Sequence[float] = (0.05, 0.5), **changes: Any) -> PolicyInputs:
    """A prompt whose class says that no cheap tier is good enough, at prices of 1, 5 and 100."""
    known = Prediction(p_ok=[*low, 1.0], kind="prior", novelty=1.0, classifier_version="t")
    base = example((1.0, 5.0, 100.0), prediction=known)
    return msgspec.structs.replace(base, **changes)


def plan(
    inputs: PolicyInputs, *levels: AgreementCounts, answering: int = 1, kind: str = "number", asked: bool = False
) -> AgreementPlan:
    return plan_agreement(inputs, answering, kind, by(*levels), SETTINGS, asked)


def rates_of(found: AgreementPlan) -> AgreementRates:
    assert found.priced is not None
    return AgreementRates(found.priced.agreed, found.priced.lost)


@pytest.mark.parametrize(
    ("costs", "answering", "tiers", "partner"),
    [
        ((1, 5, 30), 1, (1, 2), 2),
        ((1, 5, 30), 2, (1, 2), 1),
        ((1, 2, 5, 30), 1, (1, 2, 3), 3),
        ((1, 2, 5, 30), 3, (1, 2, 3), 2),
        ((1, 2.5, 10, 30), 1, (1, 2), 2),
        ((1, 2, 3, 4, 30), 3, (1, 3, 4), 4),
        ((1, 2, 3, 4, 5, 6, 7, 60), 5, (1, 5, 7), 7),
        # A sixth of 0.06 is a little less than 0.01 in binary fractions.
        ((0.005, 0.01, 0.06), 1, (1, 2), 2),
    ],
)
def test_the_partner_is_the_best_other_tier_of_at_most_a_sixth_of_the_strongest_price(
    costs: tuple[float, ...], answering: int, tiers: tuple[int, ...], partner: int
) -> None:
    group = group_of(costs, range(1, len(costs) + 1), answering, SETTINGS)
    assert group == AgreementGroup(tiers=tiers, higher=len(costs))
    assert partner_of(group, answering) == partner


@pytest.mark.parametrize("costs", [(1, 30), (1, 6, 30), (10, 20, 30), (30,)])
def test_without_two_cheap_tiers_there_is_no_agreement(costs: tuple[float, ...]) -> None:
    assert group_of(costs, range(1, len(costs) + 1), 1, SETTINGS) is None


@given(st.lists(st.floats(0.01, 100), min_size=2, max_size=8), st.data())
@settings(max_examples=examples(100))
def test_every_tier_of_a_group_is_allowed_and_cheap_and_the_chosen_one_is_in_it(
    prices: list[float], data: st.DataObject
) -> None:
    costs = sorted(prices)
    allowed = sorted(data.draw(st.sets(st.integers(1, len(costs)), min_size=1)))
    answering = data.draw(st.sampled_from(allowed))
    group = group_of(costs, allowed, answering, SETTINGS)
    most = costs[allowed[-1] - 1] / 6 * (1 + 1e-9)
    cheap = [k for k in allowed[:-1] if costs[k - 1] <= most]
    if group is None:
        assert len(cheap) < 2
        return
    assert set(group.tiers) <= set(cheap)
    assert 2 <= len(group.tiers) <= 3
    assert group.middle == cheap[-1]
    assert answering in group.tiers or answering not in cheap


def test_the_middle_answer_is_sent_where_either_cheap_one_equals_it() -> None:
    group = AgreementGroup(tiers=(1, 2, 3), higher=4)
    assert agreed_tier(group, lambda one, other: {one, other} == {1, 3}) == 3
    assert agreed_tier(group, lambda one, other: {one, other} == {2, 3}) == 3
    assert agreed_tier(group, lambda one, other: {one, other} == {1, 2}) is None


@pytest.mark.parametrize(
    ("kind", "edge", "agreed", "lost"),
    [
        ("number", 0.0, 0.72, 0.03),
        ("number", 1.0, 0.792, 0.014),
        ("number", -1.0, 0.648, 0.046),
        ("choice", 0.0, 0.5256, 0.07),
        ("fields", 0.0, 0.54, 0.06),
        ("a new one", 0.0, 0.54, 0.06),
    ],
)
def test_what_ladders_say_depends_on_the_kind_and_on_how_good_the_tiers_are(
    kind: str, edge: float, agreed: float, lost: float
) -> None:
    assert tuple(prior_rates(kind, 0.9, 0.8, edge)) == pytest.approx((agreed, lost))


@given(
    st.sampled_from(["number", "choice", "entity", "json"]), st.floats(0, 1), st.floats(0, 1), st.sampled_from([-1, 1])
)
@settings(max_examples=examples(50))
def test_rates_of_ladders_are_probabilities(kind: str, partner: float, middle: float, edge: float) -> None:
    assert all(0.0 <= rate <= 1.0 for rate in prior_rates(kind, partner, middle, edge))


def test_the_worth_is_one_less_what_is_lost_and_paid() -> None:
    group = AgreementGroup(tiers=(1, 2), higher=3)
    worth = worth_of_agreement(example(), group, AgreementRates(0.6, 0.02))
    assert worth == pytest.approx(1 - 0.6 * 0.02 - 0.1 * (0.2 + 0.4))
    # Where a strongest answer usually costs half as much, this prompt's dollars count twice.
    worth = worth_of_agreement(example(reference_usd=15.0), group, AgreementRates(0.6, 0.02))
    assert worth == pytest.approx(1 - 0.6 * 0.02 - 0.2 * (0.2 + 0.4))


def test_each_level_moves_the_one_above_by_its_counts() -> None:
    wide = AgreementCounts(compared=20.0, agreed=4.0, verified=20.0, lost=4.0)
    narrow = AgreementCounts(compared=60.0, agreed=60.0)
    found = estimated_rates([wide, narrow], AgreementRates(0.6, 0.0))
    assert tuple(found) == pytest.approx(((20 * 0.4 + 60) / 80, 0.1))


def test_counts_are_kept_by_system_prompt_key_tenant_kind_and_tiers() -> None:
    table, place = AgreementTable(), AgreementPlace("t", "k", "p", "number")
    table.compared(place, (1, 2), agreed=True)
    table.compared(place._replace(prompt="q"), (1, 2), agreed=False)
    table.verified(place._replace(key="l"), (1, 2), lost=0.5)
    table.compared(place._replace(kind="letter"), (1, 2), agreed=True)
    table.compared(place, (1, 3), agreed=True)
    others, tenant, key, prompt = table.levels(place, (1, 2))
    assert others == AgreementCounts()
    assert tenant == AgreementCounts(verified=1.0, lost=0.5)
    assert key == AgreementCounts(compared=1.0)
    assert prompt == AgreementCounts(compared=1.0, agreed=1.0)


def test_as_many_comparisons_as_the_prior_has_pseudo_counts_move_it_halfway() -> None:
    table, place = AgreementTable(), AgreementPlace("t", "k", "p", "number")
    for _ in range(20):
        table.compared(place, (1, 2), agreed=True)
        table.verified(place, (1, 2), lost=1.0)
    found = estimated_rates(table.levels(place, (1, 2)), AgreementRates(0.5, 0.0))
    assert tuple(found) == pytest.approx((0.75, 0.5))


def test_a_judges_errors_are_no_losses() -> None:
    """Of 1,000 verdicts a judge errs in 8%: what it calls worse is mostly its own error."""
    table, place = AgreementTable(), AgreementPlace("t", "k", "p", "number")
    for number in range(1000):
        table.verified(place, (1, 2), lost=float(number < 113), informed=0.84)
    assert table.levels(place, (1, 2))[-1].verified == pytest.approx(1000 * 0.84**2)
    found = estimated_rates(table.levels(place, (1, 2)), AgreementRates(0.5, 0.04))
    # 0.92 of 0.04 and 0.08 of 0.96 make 0.1136.
    assert found.lost == pytest.approx(0.04, abs=0.001)


def test_fewer_losses_than_the_judges_errors_are_none() -> None:
    table, place = AgreementTable(), AgreementPlace("t", "k", "p", "number")
    for _ in range(100):
        table.verified(place, (1, 2), lost=0.0, informed=0.5)
    assert estimated_rates(table.levels(place, (1, 2)), AgreementRates(0.5, 0.04)).lost == 0.0


def test_another_tenant_counts_for_at_most_four_comparisons() -> None:
    table = AgreementTable()
    for name, agreed in (("a", True), ("b", False)):
        place = AgreementPlace(name, "k", "p", "number")
        for _ in range(100):
            table.compared(place, (1, 2), agreed)
            table.verified(place, (1, 2), lost=float(agreed))
    others = table.levels(AgreementPlace("c", "k", "p", "number"), (1, 2))[0]
    assert others == AgreementCounts(compared=8.0, agreed=4.0, verified=8.0, lost=4.0)


def test_keys_without_a_tenant_are_others_to_each_other() -> None:
    table, place = AgreementTable(), AgreementPlace("", "k", "", "number")
    table.compared(place, (1, 2), agreed=True)
    one = AgreementCounts(compared=1.0, agreed=1.0)
    assert table.levels(place, (1, 2)) == [*[AgreementCounts()] * 3, one]
    assert table.levels(place._replace(key="l"), (1, 2)) == [one, *[AgreementCounts()] * 3]


def test_a_plan_names_the_first_tier_its_partner_and_why() -> None:
    found = plan(example(), KNOWN)
    assert (found.first, found.partner, found.others) == (1, 2, ())
    assert found.reason == (
        "tiers 1 and 2 answer together, and tier 3 if they differ, because this has the highest utility, 0.930 "
        "(tier 3 alone has 0.900)"
    )
    dear = plan(example((1, 2, 5, 30)), KNOWN, answering=4)
    assert (dear.first, dear.partner, dear.others) == (1, 3, (2,))


def test_on_the_first_day_agreement_answers_where_it_is_certain_to_pay_on_ladders_like_this() -> None:
    """Numbers agree with P 0.55 at least, and lose 4% at most: 30 points of the strongest's price pay for that."""
    found = plan(first_day(quality_target=0.7), answering=3)
    assert (found.first, found.partner) == (1, 2)
    assert rates_of(found) == pytest.approx((0.9 * 0.75 * 0.82, 0.23 * 0.18))
    # At 1 : 5 : 30 and 10 points the same is not certain, and only a request that asks for it has it.
    near = first_day(quality_target=0.9, costs=[1.0, 5.0, 30.0])
    said = plan(near, kind="choice", answering=3).reason
    assert said.startswith("tier 3 alone has a utility of 0.900, agreement 0.8")
    assert plan(near, kind="choice", answering=3, asked=True).partner == 2


def test_a_decision_says_what_agreement_was_worth_and_repeats_itself() -> None:
    inputs = first_day(quality_target=0.9, costs=[1.0, 5.0, 30.0], objective="utility")
    alone = decide(inputs)
    taken = plan(inputs, answering=3, kind="choice", asked=True).priced
    left = plan(inputs, answering=3, kind="choice").priced
    assert taken is not None
    assert left is not None
    assert (taken.taken, taken.alone, left.taken) == (True, 3, False)
    asked, not_asked = beside_agreement(alone, taken), beside_agreement(alone, left)
    assert asked.reason == f"{taken}; {alone.reason}"
    assert not_asked.reason == f"{alone.reason}; {left}"
    assert str(left).startswith("tiers 1 and 2 together, and tier 3 if they differ, would have a utility of 0.8")
    for found in (asked, not_asked):
        assert found.tier == alone.tier
        assert decide(found.inputs) == found
    # What was known later replaces it, also after a failure.
    failed = fallen_over(asked, "tier 1 failed")
    assert beside_agreement(failed, left).reason == f"{not_asked.reason}; tier 1 failed"


def test_a_tier_that_is_enough_by_its_class_is_not_replaced_on_the_first_day_unless_asked() -> None:
    enough = first_day((0.05, 0.7), quality_target=0.7)
    assert plan(enough, answering=2).reason == "tier 2 alone has a utility of 0.985, agreement 0.825"
    assert plan(enough, answering=2, asked=True).partner == 1


@pytest.mark.parametrize(("p_ok", "may"), [(0.93, True), (0.95, False)])
def test_a_tier_that_even_perfect_agreement_would_not_beat_needs_no_plan(p_ok: float, may: bool) -> None:
    known = Prediction(p_ok=[p_ok, p_ok, 1.0], kind="measured", novelty=0.0, classifier_version="t")
    inputs = first_day(prediction=known, objective="utility", quality_target=0.0)
    # The cheap answers cost 6 of 100, and a cheap one alone 1.
    assert agreement_may_pay(decide(inputs)) is may
    assert agreement_may_pay(decide(msgspec.structs.replace(inputs, objective="target")))


def test_what_was_measured_of_the_tiers_says_what_their_agreement_is_worth() -> None:
    def at(p_ok: float, labels: float) -> AgreementRates:
        known = Prediction(p_ok=[p_ok, p_ok, 1.0], kind="prior", novelty=0.0, classifier_version="t")
        known = msgspec.structs.replace(known, labels=[labels, labels])
        return rates_of(plan(first_day(prediction=known), asked=True))

    assert at(0.4, 0.0) == at(0.9, 0.0)
    assert at(0.4, 20.0).agreed < at(0.9, 20.0).agreed < at(0.9, 1000.0).agreed
    assert at(0.4, 20.0).lost > at(0.9, 20.0).lost > at(0.9, 1000.0).lost


def test_a_kind_that_agrees_too_rarely_is_asked_no_more() -> None:
    assert plan(example(), AgreementCounts(compared=10.0), asked=True).partner == 2
    assert plan(example(), AgreementCounts(compared=200.0), asked=True).partner is None
    assert plan(example(), KNOWN, AgreementCounts(compared=40.0, agreed=30.0)).partner == 2


def test_where_the_strongest_tier_costs_nothing_to_the_caller_it_answers() -> None:
    never = AgreementCounts(compared=1e9)
    assert plan(example(quality_target=1.0), never).reason == "tier 3 alone has a utility of 1.000, agreement 1.000"


def test_the_costs_of_all_that_answer_count_towards_the_maximum() -> None:
    costs = (1, 2, 3, 4, 30)
    assert plan(example(costs, max_cost_usd=38.0), KNOWN, answering=3).group == AgreementGroup(
        tiers=(1, 3, 4), higher=5
    )
    assert plan(example(costs, max_cost_usd=37.9), KNOWN, answering=3).reason == (
        "all answers would cost $38.000000, which is above the maximum $37.900000"
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pinned_tier": 1}, "the request is pinned to tier 1"),
        ({"rules": RuledBy(names=["r"], tier=2)}, "a rule sends the request to tier 2"),
        ({"arm_tier": 2}, "the experiment sends the request to tier 2"),
        ({"observe_tier": 3}, "in observe mode tier 3 answers"),
    ],
)
def test_a_request_that_one_tier_must_answer_says_why(changes: dict[str, Any], reason: str) -> None:
    assert plan(example(**changes), KNOWN).reason == reason
    assert group_to_verify(example(**changes), 1, SETTINGS, is_judged=True) is None


def test_a_rule_that_leaves_several_tiers_leaves_agreement() -> None:
    assert plan(example(rules=RuledBy(names=["r"])), KNOWN).partner == 2


def test_a_measured_fixed_tier_of_more_worth_is_not_replaced() -> None:
    def inputs(kind: str) -> PolicyInputs:
        known = Prediction(p_ok=[0.1, 0.97, 1.0], kind=kind, novelty=0.0, classifier_version="t")  # type: ignore[arg-type]
        return example(prediction=known)

    assert plan(inputs("measured"), KNOWN).reason.startswith("tier 2 alone has a utility of 0.953, agreement 0.93")
    assert plan(inputs("prior"), KNOWN, asked=True).partner == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"pinned_tier": 1},
        {"arm_tier": 2},
        {"observe_tier": 3},
        {"max_cost_usd": 35.9},
        {"exclusions": [Exclusion(tier=1, reason="the tier is down")]},
        {"previous_tier": 2, "in_tool_loop": True},
        {"quality_target": 1.0},
    ],
)
def test_no_partner_is_asked_where_one_tier_must_answer_or_cost_is_bounded(changes: dict[str, Any]) -> None:
    assert plan(example(max_cost_usd=36.0), KNOWN, asked=True).partner == 2
    assert plan(example(**changes), KNOWN, asked=True).partner is None


COUNTS = st.builds(
    lambda compared, agreed, verified, lost: AgreementCounts(
        compared=float(compared), agreed=compared * agreed, verified=float(verified), lost=verified * lost
    ),
    st.integers(0, 500),
    st.floats(0, 1),
    st.integers(0, 500),
    st.floats(0, 1),
)


@given(
    st.lists(st.floats(0.01, 100), min_size=2, max_size=8),
    st.lists(COUNTS, max_size=4),
    st.floats(0, 1),
    st.floats(0.01, 100),
    st.floats(0.1, 200) | st.none(),
    st.booleans(),
    st.data(),
)
@settings(max_examples=examples(200))
def test_a_plan_never_asks_where_the_inequality_fails_or_beyond_the_maximum_cost(
    prices: list[float],
    levels: list[AgreementCounts],
    target: float,
    reference: float,
    most: float | None,
    asked: bool,
    data: st.DataObject,
) -> None:
    costs = sorted(prices)
    p_ok = data.draw(st.lists(st.floats(0, 1), min_size=len(costs) - 1, max_size=len(costs) - 1))
    prediction = Prediction(p_ok=[*p_ok, 1.0], kind="measured", novelty=0.0, classifier_version="t")
    inputs = example(costs, prediction=prediction, quality_target=target, reference_usd=reference, max_cost_usd=most)
    found = plan(inputs, *levels, answering=data.draw(st.integers(1, len(costs))), asked=asked)
    if found.partner is None:
        assert found.reason
        return
    assert found.group is not None
    assert {found.first, found.partner, *found.others} == set(found.group.tiers)
    cheap, dear, exchange = sum(costs[k - 1] for k in found.group.tiers), costs[found.group.higher - 1], 1 - target
    assert most is None or cheap + dear <= most
    agreed, lost = rates_of(found)
    worth = 1 - agreed * lost - exchange * (cheap + (1 - agreed) * dear) / reference
    assert worth > 1 - exchange * dear / reference - 1e-6
    allowed = [k for k in range(1, len(costs) + 1) if most is None or costs[k - 1] <= most]
    assert all(worth > prediction.p_ok[k - 1] - exchange * costs[k - 1] / reference - 1e-6 for k in allowed)


def to_verify(inputs: PolicyInputs, *, is_judged: bool = False) -> tuple[int, ...] | None:
    group = group_to_verify(inputs, 1, SETTINGS, is_judged=is_judged)
    return None if group is None else group.tiers


NOTHING = AgreementCounts()


@pytest.mark.parametrize(
    ("counts", "lacking"),
    [
        (NOTHING, True),
        (AgreementCounts(compared=30.0, agreed=19.0, verified=19.0), True),
        (AgreementCounts(compared=30.0, agreed=20.0, verified=20.0), False),
        (AgreementCounts(compared=200.0, agreed=20.0, verified=5.0), False),
    ],
)
def test_verification_compares_until_counts_decide(counts: AgreementCounts, lacking: bool) -> None:
    group = AgreementGroup(tiers=(1, 2), higher=3)
    assert lacks_counts(example(), group, "number", by(NOTHING, NOTHING, NOTHING, counts), SETTINGS) is lacking


def test_verification_compares_what_requests_may_be_compared_by() -> None:
    assert to_verify(example()) == (1, 2)
    assert to_verify(example(pinned_tier=2)) is None
    assert to_verify(example((1.0, 30.0))) is None
    assert to_verify(example((1.0, 30.0)), is_judged=True) == (1, 1)
    assert to_verify(example((1.0, 30.0), exclusions=[Exclusion(tier=2, reason="down")]), is_judged=True) is None


@given(agreed=st.integers(0, 200), wrong=st.integers(0, 200), differ=st.integers(0, 200), price=st.floats(1.0, 60.0))
@settings(max_examples=examples(100))
def test_a_second_sample_pays_where_it_is_worth_more_than_the_next_tier(
    agreed: int, wrong: int, differ: int, price: float
) -> None:
    inputs = example((1.0, price))
    lost = min(wrong, agreed)
    counts = AgreementCounts(
        compared=float(agreed + differ), agreed=float(agreed), verified=float(agreed), lost=float(lost)
    )
    pays = second_sample_pays(inputs, 1, "number", by(counts), SETTINGS)
    a = (20 * 0.9 * 0.8 + agreed) / (20 + agreed + differ)
    d = (20 * 0.23 * 0.2 + lost) / (20 + agreed)
    worth, r = 1 - a * d - 0.1 * (1 / price + 1 - a), 0.1
    few = agreed < 20
    if abs(worth - (1 - r)) > 1e-9:
        assert pays == (not few and worth > 1 - r)
