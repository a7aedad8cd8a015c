"""Sampling: repeatable, at the stated rate, within the budget, and never without consent."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loop_world import record

from quality.estimates import wilson_interval
from quality.sampling import SamplingSettings, Spending, admits, affordable_rate, draw, uniform

RICH = Spending(serving_usd=1e6, eligible_requests=10, committed_usd=0.0, verifications=0)


def test_draws_five_percent_of_many_requests_within_a_binomial_bound() -> None:
    drawn = sum(draw(record(f"req-{i}"), RICH, 0.01, SamplingSettings()).sampled for i in range(20_000))

    # 99.99% of binomial(20000, 0.05): 1000 ± 3.9 standard deviations of 30.8.
    assert 880 <= drawn <= 1120


def test_gives_the_same_request_the_same_fate_every_time() -> None:
    ids = [f"req-{i}" for i in range(500)]

    first = [draw(record(i), RICH, 0.01, SamplingSettings()).sampled for i in ids]

    assert first == [draw(record(i), RICH, 0.01, SamplingSettings()).sampled for i in ids]
    assert any(first)


def test_another_key_draws_other_requests() -> None:
    ids = [f"req-{i}" for i in range(2000)]

    assert {i for i in ids if uniform(i, "a") < 0.05} != {i for i in ids if uniform(i, "b") < 0.05}


def test_a_higher_rate_keeps_what_a_lower_one_draws() -> None:
    low, high = SamplingSettings(rate=0.05), SamplingSettings(rate=0.2)

    for i in range(1000):
        if draw(record(f"req-{i}"), RICH, 0.0, low).sampled:
            assert draw(record(f"req-{i}"), RICH, 0.0, high).sampled


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"messages": None, "answer": None}, "no consent"),
        ({"answer": None}, "no consent"),
        ({"tier": 3}, "tier"),
        ({"tier": 4}, "tier"),
        ({"status": "aborted"}, "not answered"),
        ({"finish_reason": "length"}, "not answered"),
        ({"answer": "  "}, "not answered"),
        ({"api": "completion"}, "not a chat"),
    ],
)
def test_never_draws_what_must_not_or_cannot_be_judged(changes: dict[str, object], reason: str) -> None:
    refused = draw(record("req-1", **changes), RICH, 0.01, SamplingSettings(rate=1.0))

    assert (refused.sampled, refused.probability, refused.reason) == (False, 0.0, reason)


def test_an_empty_budget_stops_sampling() -> None:
    poor = Spending(serving_usd=10.0, eligible_requests=10, committed_usd=0.5, verifications=5)

    refused = draw(record("req-1"), poor, 0.01, SamplingSettings(rate=1.0))

    assert (refused.sampled, refused.reason) == (False, "no budget")


def test_before_the_store_knows_of_any_request_the_ceiling_alone_decides() -> None:
    assert draw(record("req-1"), Spending(), 0.01, SamplingSettings(rate=1.0)).sampled


def test_a_small_budget_thins_the_draw_and_says_with_which_probability() -> None:
    # 1000 eligible requests, 50 cents to spend, a cent each: 50 of 1000 is affordable, not the ceiling of half.
    spending = Spending(serving_usd=10.0, eligible_requests=1000, committed_usd=0.1, verifications=10)

    decided = draw(record("req-1"), spending, 0.02, SamplingSettings(rate=0.5))

    assert decided.probability == pytest.approx(0.05)


@given(
    serving=st.floats(0, 1e4),
    eligible=st.integers(0, 10_000),
    committed=st.floats(0, 1e4),
    verifications=st.integers(0, 1000),
    bound=st.floats(0, 10),
    rate=st.floats(0, 1),
)
def test_the_rate_never_passes_its_ceiling(
    serving: float, eligible: int, committed: float, verifications: int, bound: float, rate: float
) -> None:
    spending = Spending(
        serving_usd=serving, eligible_requests=eligible, committed_usd=committed, verifications=verifications
    )

    assert 0.0 <= affordable_rate(spending, bound, SamplingSettings(rate=rate)) <= rate


@given(
    steps=st.lists(
        st.tuples(st.floats(0, 5), st.floats(0, 3), st.floats(0, 1)),
        max_size=60,
    ),
    share=st.floats(0, 1),
)
def test_what_is_committed_never_passes_the_budget(steps: list[tuple[float, float, float]], share: float) -> None:
    spending = Spending()
    for served, bound, used in steps:
        spending = msgspec.structs.replace(spending, serving_usd=spending.serving_usd + served)
        if not admits(spending, bound, share):
            continue
        reserved = msgspec.structs.replace(spending, committed_usd=spending.committed_usd + bound)
        assert reserved.committed_usd <= share * reserved.serving_usd
        spending = msgspec.structs.replace(spending, committed_usd=spending.committed_usd + bound * used)


def test_wrong_settings_are_refused_with_the_allowed_range() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        SamplingSettings(rate=1.5)
    with pytest.raises(ValueError, match="not be negative"):
        SamplingSettings(budget_share=-0.1)


def test_wilson_matches_published_values() -> None:
    # Newcombe (1998), table I, method 3: 81/263 and 15/148.
    assert wilson_interval(81, 263).low == pytest.approx(0.2553, abs=1e-4)
    assert wilson_interval(81, 263).high == pytest.approx(0.3662, abs=1e-4)
    assert wilson_interval(15, 148).low == pytest.approx(0.0624, abs=1e-4)
    assert wilson_interval(15, 148).high == pytest.approx(0.1605, abs=1e-4)
