"""Sampling: reproducible, at the stated rate, within the budget, and never without consent."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quality.estimates.verified_sample import wilson_interval
from quality.records.record import Record
from quality.verification.sampling import (
    SamplingSettings,
    Spending,
    admits,
    attention,
    draw,
    is_eligible,
    sampling_of,
    thinning,
    uniform,
)
from tests.quality.loop_world import record

RICH = Spending(serving_usd=1e6, answered={1: 10}, committed_usd=0.0, verifications=0)
NO_PROBES = SamplingSettings(probe_rate=0.0, probe_share=0.0)


def certain(request_id: str, p_ok: float, novelty: float = 0.0, **changes: Any) -> Record:
    """A request whose tier was good enough with predicted probability `p_ok`."""
    served = record(request_id, **changes)
    prediction = msgspec.structs.replace(
        served.decision.inputs.prediction, p_ok=[p_ok, p_ok, p_ok, 1.0], novelty=novelty, kind="prior"
    )
    inputs = msgspec.structs.replace(served.decision.inputs, prediction=prediction)
    return msgspec.structs.replace(served, decision=msgspec.structs.replace(served.decision, inputs=inputs))


@pytest.mark.parametrize(("tier", "rate"), [(1, 0.05), (2, 0.05), (3, 0.01), (4, 0.01)])
def test_the_most_doubtful_answers_are_drawn_at_the_ceiling_of_their_tier(tier: int, rate: float) -> None:
    doubtful = certain("req", 0.5, novelty=1.0, tier=tier)
    settings = msgspec.structs.replace(sampling_of(4, 0.05, 0.05), probe_rate=0.0, probe_share=0.0)
    drawn = [
        draw(msgspec.structs.replace(doubtful, request_id=f"req-{i}"), RICH, 0.01, settings) for i in range(20_000)
    ]

    # 99.99% of a binomial: 3.9 standard deviations.
    assert abs(sum(one.sampled for one in drawn) - 20_000 * rate) < 3.9 * (20_000 * rate) ** 0.5
    assert {one.probability for one in drawn} == {rate}
    assert {one.purpose for one in drawn} == {"sample" if tier < 3 else "downgrade"}


def test_certain_and_familiar_answers_are_drawn_less_often_and_say_how_often() -> None:
    sure, new = certain("req-1", 1.0), certain("req-1", 1.0, novelty=1.0)

    assert (
        attention(sure, 0.25) == 0.25 < attention(new, 0.25) < attention(certain("req-1", 0.5, novelty=1.0), 0.25) == 1
    )
    assert draw(sure, RICH, 0.01, NO_PROBES).probability == pytest.approx(0.05 * 0.25)
    assert draw(sure, RICH, 0.01, msgspec.structs.replace(NO_PROBES, least_attention=1.0)).probability == 0.05


def test_every_answered_chat_is_probed_with_the_same_chance_whatever_its_tier() -> None:
    settings = SamplingSettings(rates=(), probe_rate=0.05)
    purposes = {
        tier: [draw(record(f"req-{i}", tier=tier), RICH, 0.01, settings) for i in range(5000)] for tier in (1, 4)
    }

    drawn = {tier: [one.sampled for one in draws] for tier, draws in purposes.items()}
    assert drawn[1] == drawn[4]
    assert 180 < sum(drawn[1]) < 320
    assert {one.purpose for one in purposes[1] if one.sampled} == {"probe"}


def test_probing_does_not_depend_on_being_sampled() -> None:
    settings = SamplingSettings(probe_rate=0.5)
    ids = [f"req-{i}" for i in range(4000)]
    sampled = {i for i in ids if uniform(i) < 0.05}
    probed = {i for i in ids if draw(record(i), RICH, 0.01, settings).purpose == "probe"}

    assert 0.35 < len(probed & sampled) / len(sampled) < 0.65


def test_a_request_outside_the_ceilings_is_never_drawn() -> None:
    settings = SamplingSettings(rates=(0.3, 0.3), probe_rate=0.1)
    for i in range(2000):
        for tier in (1, 3):
            served = certain(f"req-{i}", 0.5, novelty=1.0, tier=tier)
            if draw(served, RICH, 0.0, settings).sampled:
                assert is_eligible(served, settings)


def test_gives_the_same_request_the_same_fate_every_time() -> None:
    ids = [f"req-{i}" for i in range(500)]

    first = [draw(record(i), RICH, 0.01, NO_PROBES).sampled for i in ids]

    assert first == [draw(record(i), RICH, 0.01, NO_PROBES).sampled for i in ids]
    assert any(first)


def test_another_key_draws_other_requests() -> None:
    ids = [f"req-{i}" for i in range(2000)]

    assert {i for i in ids if uniform(i, "a") < 0.05} != {i for i in ids if uniform(i, "b") < 0.05}


def test_a_higher_rate_keeps_what_a_lower_one_draws() -> None:
    low = msgspec.structs.replace(NO_PROBES, rates=(0.05,))
    high = msgspec.structs.replace(NO_PROBES, rates=(0.2,))

    for i in range(1000):
        if draw(record(f"req-{i}"), RICH, 0.0, low).sampled:
            assert draw(record(f"req-{i}"), RICH, 0.0, high).sampled


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"messages": None, "answer": None}, "no consent"),
        ({"answer": None}, "no consent"),
        ({"tier": 5}, "tier"),
        ({"status": "aborted"}, "not answered"),
        ({"finish_reason": "length"}, "cut off"),
        ({"finish_reason": "tool_calls"}, "not kept"),
        ({"answer": "  "}, "not answered"),
        ({"cache": "hit"}, "cached"),
        ({"cache": "shared"}, "cached"),
        ({"cache": "similar"}, "cached"),
        ({"api": "completion"}, "not a chat"),
        ({"messages": [{"role": "user", "content": "What?", "attachments": "[image, 9 bytes, 0a]"}]}, "not kept"),
    ],
)
def test_never_draws_what_must_not_or_cannot_be_judged(changes: dict[str, object], reason: str) -> None:
    refused = draw(record("req-1", **changes), RICH, 0.01, msgspec.structs.replace(NO_PROBES, rates=(1.0,) * 4))

    assert (refused.sampled, refused.probability, refused.reason) == (False, 0.0, reason)


def test_an_empty_budget_stops_sampling() -> None:
    poor = Spending(serving_usd=10.0, answered={1: 10}, committed_usd=0.5, verifications=5)

    refused = draw(record("req-1"), poor, 0.01, msgspec.structs.replace(NO_PROBES, rates=(1.0,)))

    assert (refused.sampled, refused.reason) == (False, "no budget")


def test_probes_and_samples_have_budgets_of_their_own() -> None:
    settings = SamplingSettings(rates=(1.0,), probe_rate=0.0, budget_share=0.1, probe_share=0.6)
    spending = Spending(serving_usd=10.0, answered={1: 10}, committed_usd=0.4, probe_usd=0.5)

    assert not admits(spending, 0.01, "sample", settings)
    assert admits(spending, 0.1, "probe", settings)
    assert not admits(spending, 0.11, "probe", settings)


def test_before_the_store_knows_of_any_request_the_ceiling_alone_decides() -> None:
    assert draw(certain("req-1", 0.5, 1.0), Spending(), 0.01, SamplingSettings(rates=(1.0,))).sampled


def test_a_small_budget_thins_the_draw_and_says_with_which_probability() -> None:
    # 1000 eligible requests, 50 cents to spend, a cent each: 50 of 1000 is affordable, not the ceiling of half.
    spending = Spending(serving_usd=10.0, answered={1: 1000}, committed_usd=0.1, verifications=10)

    settings = msgspec.structs.replace(NO_PROBES, rates=(0.5,))
    decided = draw(certain("req-1", 0.5, novelty=1.0), spending, 0.02, settings)

    assert decided.probability == pytest.approx(0.05)


@given(
    serving=st.floats(0, 1e4),
    eligible=st.integers(0, 10_000),
    committed=st.floats(0, 1e4),
    verifications=st.integers(0, 1000),
    bound=st.floats(0, 10),
    rate=st.floats(0, 1),
)
def test_thinning_is_a_share(
    serving: float, eligible: int, committed: float, verifications: int, bound: float, rate: float
) -> None:
    spending = Spending(
        serving_usd=serving, answered={1: eligible}, committed_usd=committed, verifications=verifications
    )

    for purpose in ("sample", "probe"):
        assert 0.0 <= thinning(spending, bound, purpose, SamplingSettings(rates=(rate,))) <= 1.0


@given(
    steps=st.lists(
        st.tuples(st.floats(0, 5), st.floats(0, 3), st.floats(0, 1)),
        max_size=60,
    ),
    share=st.floats(0, 1),
)
def test_commitments_never_exceed_the_budget(steps: list[tuple[float, float, float]], share: float) -> None:
    spending = Spending()
    for served, bound, used in steps:
        spending = msgspec.structs.replace(spending, serving_usd=spending.serving_usd + served)
        if not admits(spending, bound, "sample", SamplingSettings(budget_share=share, probe_share=0.0)):
            continue
        reserved = msgspec.structs.replace(spending, committed_usd=spending.committed_usd + bound)
        assert reserved.committed_usd <= share * reserved.serving_usd
        spending = msgspec.structs.replace(spending, committed_usd=spending.committed_usd + bound * used)


def test_wrong_settings_are_refused_with_the_allowed_range() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        SamplingSettings(rates=(1.5,))
    with pytest.raises(ValueError, match="not be negative"):
        SamplingSettings(budget_share=-0.1)


def test_wilson_matches_published_values() -> None:
    # Newcombe (1998), table I, method 3: 81/263 and 15/148.
    assert wilson_interval(81, 263).low == pytest.approx(0.2553, abs=1e-4)
    assert wilson_interval(81, 263).high == pytest.approx(0.3662, abs=1e-4)
    assert wilson_interval(15, 148).low == pytest.approx(0.0624, abs=1e-4)
    assert wilson_interval(15, 148).high == pytest.approx(0.1605, abs=1e-4)


COLD = SamplingSettings(probe_rate=0.0, probe_share=0.0, cold_start_rate=0.25, cold_start_usd=1.0)


@pytest.mark.parametrize(("novelty", "left", "wanted"), [(1.0, 1.0, 0.25), (0.5, 1.0, 0.125), (1.0, 0.4, 0.1)])
def test_prompts_of_which_little_is_known_are_verified_more_often_while_the_cold_start_may_spend(
    novelty: float, left: float, wanted: float
) -> None:
    spending = Spending(serving_usd=0.01, answered={1: 10}, committed_usd=1.0 - left + 0.0005, verifications=5)
    found = draw(certain("req-1", 1.0, novelty=novelty), spending, 0.01, COLD)
    assert found.probability == pytest.approx(wanted)


def test_a_cold_start_never_spends_more_than_its_dollars_and_the_budget() -> None:
    spending = Spending(serving_usd=1.0, answered={1: 10})
    for i in range(5_000):
        found = draw(certain(f"req-{i}", 0.5, novelty=1.0), spending, 0.02, COLD)
        if found.sampled and admits(spending, 0.02, "sample", COLD):
            committed, count = spending.committed_usd + 0.02, spending.verifications + 1
            spending = msgspec.structs.replace(spending, committed_usd=committed, verifications=count)
    assert 0.9 < spending.committed_usd <= 1.05


def test_a_switched_off_sampling_stays_off_in_a_cold_start() -> None:
    assert sampling_of(4, 0.0, 0.05, 1.0).cold_start_rate == sampling_of(4, 0.05, 0.0, 1.0).cold_start_usd == 0.0
    assert sampling_of(4, 0.05, 0.05, 1.0).cold_start_rate > 0.05


def test_a_catalogue_of_which_something_was_measured_has_a_cold_start_too() -> None:
    """Its own traffic is as unknown; what counts is the novelty for the tier that is verified."""
    served = certain("req-1", 1.0, novelty=0.2)
    prediction = msgspec.structs.replace(
        served.decision.inputs.prediction, kind="measured", labels=[5.0, 80.0, 0.0], novelty=0.2
    )
    inputs = msgspec.structs.replace(served.decision.inputs, prediction=prediction)
    measured = msgspec.structs.replace(served, decision=msgspec.structs.replace(served.decision, inputs=inputs))
    spending = Spending(serving_usd=0.01, answered={1: 10})
    assert draw(measured, spending, 0.01, COLD).probability == pytest.approx(0.25 * 20 / 25, rel=0.01)


def test_the_budget_is_a_share_of_the_saving_where_that_is_more_and_never_above_the_cap() -> None:
    settings = SamplingSettings(saving_share=0.2, probe_share=0.5)
    assert settings.budget(Spending(serving_usd=10.0)) == pytest.approx(0.5)
    saving = Spending(serving_usd=10.0, saved_usd=20.0)
    assert settings.budget(saving) == pytest.approx(4.0)
    assert admits(saving, 2.0, "probe", settings)
    assert not admits(saving, 2.1, "probe", settings)
    capped = msgspec.structs.replace(settings, most_usd=3.0, cold_start_usd=2.0)
    assert capped.budget(saving) == 3.0
    assert capped.beyond("probe", saving) == 0.0, "the cap is above a cold start too"
    assert not admits(saving, 1.6, "probe", capped)


def test_probes_have_a_share_of_what_a_cold_start_may_spend() -> None:
    settings = SamplingSettings(cold_start_usd=1.0, probe_share=0.25)
    nothing = Spending()
    assert [admits(nothing, usd, "probe", settings) for usd in (0.25, 0.26)] == [True, False]
    assert [admits(nothing, usd, "sample", settings) for usd in (0.75, 0.76)] == [True, False]


def test_the_first_requests_of_a_family_are_probes_while_there_is_money() -> None:
    dense = SamplingSettings(cold_start_usd=1.0, least_probe_rate=1.0, least_rate=0.12)
    found = draw(record("req-1"), Spending(answered={1: 10}), 0.01, dense, 0.03)
    assert (found.sampled, found.purpose, found.probability) == (True, "probe", 1.0)
    assert is_eligible(record("req-1"), dense)
    poor = Spending(answered={1: 10}, probe_usd=0.49)
    assert draw(record("req-1"), poor, 0.01, dense, 0.03).purpose == "sample"
    rest = msgspec.structs.replace(dense, least_probe_rate=0.0, probe_rate=0.0)
    assert draw(certain("req-1", 1.0), Spending(answered={1: 10}), 0.01, rest).probability == pytest.approx(0.12)


@pytest.mark.parametrize(("requests", "least_saving"), [(1_000, 0.85), (50_000, 0.95), (5_000_000, 0.98)])
def test_what_goes_on_for_ever_leaves_most_of_what_routing_saves(requests: int, least_saving: float) -> None:
    """A ladder whose strongest answer costs 0.3 cents, of which 0.24 are saved; a model judges, for six answers a
    label and fourteen a probe."""
    settings = sampling_of(4, 0.05, 0.05, 1.0, 20.0)
    saved, strongest = 0.0024 * requests, 0.003
    spending = Spending(serving_usd=0.0006 * requests, saved_usd=saved, answered={1: requests})
    samples, probes = 0.05 * requests, settings.probe_rate * requests
    spent = samples * thinning(spending, 6 * strongest, "sample", settings) * 6 * strongest
    spent += probes * thinning(spending, 14 * strongest, "probe", settings) * 14 * strongest
    assert 1 - spent / saved >= least_saving
    assert spent > 0.0


def test_a_steady_sample_is_no_more_than_the_alarms_need() -> None:
    settings = SamplingSettings(rates=(0.05,), probe_rate=0.0, probe_share=0.0, steady_a_day=400.0)
    rich = Spending(serving_usd=1e9, answered={1: 5_000_000})
    assert thinning(rich, 0.01, "sample", settings) == pytest.approx(400 / 250_000)


def test_what_is_left_to_a_tenant_bounds_its_draws_and_its_money_thins_the_steady_ones() -> None:
    settings = SamplingSettings(
        rates=(0.5,), least_attention=1.0, probe_rate=0.0, probe_share=0.0, budget_share=0.05, steady_share=0.04,
        saving_share=0.2, start_usd=0.25,
    )  # fmt: skip
    everybody = Spending(serving_usd=1e6, saved_usd=1e6, answered={1: 1000})
    asked = certain("req-1", 0.5, 1.0)

    def rate(price: float, **own: Any) -> float:
        spent = Spending(**({"answered": {1: 100}, "start_usd": 0.0} | own))
        return draw(asked, everybody, price, settings, own=spent).probability

    assert rate(1.0, saved_usd=50 / 0.04) == 0.5, "fifty of its answers are paid"
    assert rate(1.0, saved_usd=5 / 0.04) == pytest.approx(0.05)
    assert rate(1.0, saved_usd=5 / 0.04, committed_usd=24.1) == pytest.approx(0.0)
    refused = draw(asked, everybody, 1.0, settings, own=Spending(start_usd=0.5, committed_usd=0.1))
    assert (refused.sampled, refused.reason) == (False, "no budget of its own")
    assert draw(asked, everybody, 1.0, settings).probability == 0.5, "without a bound of its own"


def test_a_start_is_a_quarter_of_a_cold_start() -> None:
    assert sampling_of(4, 0.05, 0.05, 1.0).start_usd == 0.25
    assert sampling_of(4, 0.05, 0.05, 0.0).start_usd == 0.0
    with pytest.raises(ValueError, match="start_usd"):
        SamplingSettings(start_usd=-1.0)
