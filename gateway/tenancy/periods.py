"""The calendar periods of budgets (UTC), and money in whole micro-dollars, whose sums are exact."""

import math
from datetime import UTC, datetime, timedelta

MICRO = 1_000_000


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


def microusd(usd: float) -> int:
    """Round US dollars to micro-dollars: costs of requests are whole micro-dollars already."""
    return round(usd * MICRO)


def microusd_at_least(usd: float) -> int:
    """Round US dollars up to micro-dollars, ignoring floating-point error."""
    return math.ceil(round(usd * MICRO, 3))
