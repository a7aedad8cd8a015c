"""Read a server's queue from its Prometheus page, without parsing the rest."""

import math
import re
from collections.abc import Sequence
from functools import lru_cache

MOST_COUNTED = 2**53
"""Up to it a sample is a whole number; no server has answered or holds so many requests."""


def sum_of_samples(page: bytes, names: Sequence[str]) -> int | None:
    """Return the sum of all samples of these names, with any labels; None if a name has none, or if they are no
    counts."""
    total = 0.0
    for name in names:
        values = [_number(value) for value in _pattern(name).findall(page)]
        if not values or not all(0 <= value <= MOST_COUNTED for value in values):
            return None
        total += sum(values)
    return round(total) if total <= MOST_COUNTED else None


def _number(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


@lru_cache
def _pattern(name: str) -> re.Pattern[bytes]:
    number = rb"([0-9.eE+-]{1,64}(?![0-9.eE+-])|NaN|[+-]?Inf)"
    return re.compile(rb"^" + re.escape(name.encode()) + rb"(?:\{[^\n]*\})?[ \t]+" + number, re.MULTILINE)
