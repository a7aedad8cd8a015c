"""Calendar periods and whole micro-dollars of budgets, and the most tokens that are billed."""

import math
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from gateway.tenancy.budgets.cost_bound import MostTokens
from gateway.tenancy.budgets.periods import microusd, microusd_at_least, period_bounds, period_key
from tiers.tier import Usage


def at(*parts: int) -> float:
    return datetime(*parts, tzinfo=UTC).timestamp()  # type: ignore[arg-type, misc]


@pytest.mark.parametrize(
    ("period", "now", "key", "begin", "end"),
    [
        ("day", at(2024, 2, 28, 23, 59), "2024-02-28", at(2024, 2, 28), at(2024, 2, 29)),
        ("day", at(2024, 12, 31), "2024-12-31", at(2024, 12, 31), at(2025, 1, 1)),
        ("month", at(2024, 2, 29), "2024-02", at(2024, 2, 1), at(2024, 3, 1)),
        ("month", at(2023, 12, 31), "2023-12", at(2023, 12, 1), at(2024, 1, 1)),
        ("month", at(2024, 1, 31), "2024-01", at(2024, 1, 1), at(2024, 2, 1)),
        ("total", at(2024, 1, 31), "total", 0.0, math.inf),
    ],
)
def test_a_period_is_a_day_or_a_month_of_utc_or_all_time(
    period: str, now: float, key: str, begin: float, end: float
) -> None:
    assert period_key(period, now) == key
    assert period_bounds(key) == (begin, end)
    assert begin <= now < end


def test_dollars_are_micro_dollars_with_their_fraction_and_rounded_up_where_whole_ones_are_kept() -> None:
    assert microusd(0.1) == Decimal(100_000)
    assert microusd(1e-7) == Decimal("0.1")
    assert microusd(0.1 + 0.2) == Decimal("300000"), "the error of the binary fraction is dropped"
    assert [microusd_at_least(usd) for usd in (0.0, 1e-6, 1.0000001e-6, 1.001e-6, 1.4e-6, 0.1 + 0.2)] == [
        0, 1, 1, 2, 2, 300_000
    ]  # fmt: skip


def test_a_bill_has_no_more_tokens_than_were_held_and_its_parts_stay_within_it() -> None:
    most = MostTokens(prompt=100, answer=50, choice=25)
    within = Usage(prompt_tokens=100, completion_tokens=50, cached_tokens=90)
    assert most.bound(within) is within
    beyond = Usage(
        prompt_tokens=101, completion_tokens=10, cached_tokens=70, cache_write_tokens=31, cache_write_1h_tokens=31,
        reasoning_tokens=9,
    )  # fmt: skip
    assert most.bound(beyond) == Usage(
        prompt_tokens=100, completion_tokens=10, cached_tokens=70, cache_write_tokens=30, cache_write_1h_tokens=30,
        reasoning_tokens=9,
    )  # fmt: skip
    long = Usage(prompt_tokens=10, completion_tokens=51, cached_tokens=70, cache_write_tokens=5, reasoning_tokens=51)
    assert most.bound(long) == Usage(
        prompt_tokens=10, completion_tokens=50, cached_tokens=10, cache_write_tokens=0, reasoning_tokens=50
    )
