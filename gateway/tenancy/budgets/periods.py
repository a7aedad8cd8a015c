"""The calendar periods of budgets (UTC), and money in decimal micro-dollars, whose sums are exact."""

import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated

import msgspec

MICRO = 1_000_000
# At most a billion dollars: far above it, micro-dollars would be inexact.
BudgetUsd = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
# A millionth of a micro-dollar: prices are dollars per million tokens, so that a token's has hardly more digits.
_LEAST = Decimal("0.000001")


def period_key(period: str, now: float) -> str:
    """Return the name of the day, the month or the single total period that contains `now` (epoch seconds)."""
    if period == "total":
        return "total"
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d" if period == "day" else "%Y-%m")


def period_bounds(key: str) -> tuple[float, float]:
    """Return the start of the period of this name and of the next one (epoch seconds)."""
    if key == "total":
        return 0.0, math.inf
    parts = [int(part) for part in key.split("-")]
    begin = datetime(parts[0], parts[1], parts[2] if len(parts) == 3 else 1, tzinfo=UTC)
    # The 1st plus 31 days is in the next month, for every month.
    end = begin + timedelta(days=1) if len(parts) == 3 else (begin + timedelta(days=31)).replace(day=1)
    return begin.timestamp(), end.timestamp()


def microusd(usd: float) -> Decimal:
    """Convert US dollars to micro-dollars with their fraction, ignoring floating-point error."""
    return (Decimal(str(usd)) * MICRO).quantize(_LEAST)


def microusd_at_least(usd: float) -> int:
    """Round US dollars up to whole micro-dollars, ignoring floating-point error."""
    return math.ceil(round(usd * MICRO, 3))
