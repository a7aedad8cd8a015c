"""What a server's Prometheus page says of its queue, without parsing the rest of it."""

import math
import re
from collections.abc import Sequence
from functools import lru_cache


def sum_of_samples(page: bytes, names: Sequence[str]) -> int | None:
    """The sum of all samples of these names, whatever their labels; None where one of them has none."""
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
