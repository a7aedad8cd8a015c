"""Read a server's queue from its Prometheus page, without parsing the rest."""

import math
import re
from collections.abc import Sequence
from functools import lru_cache


def sum_of_samples(page: bytes, names: Sequence[str]) -> int | None:
    """Return the sum of all samples of these names, with any labels; None if a name has none."""
    total = 0.0
    for name in names:
        values = [_number(value) for value in _pattern(name).findall(page)]
        if not values or not all(map(math.isfinite, values)):
            return None
        total += sum(values)
    return round(total)


def _number(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


@lru_cache
def _pattern(name: str) -> re.Pattern[bytes]:
    number = rb"([0-9.eE+-]+|NaN|[+-]?Inf)"
    return re.compile(rb"^" + re.escape(name.encode()) + rb"(?:\{[^\n]*\})?[ \t]+" + number, re.MULTILINE)
