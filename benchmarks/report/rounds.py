"""Figures of interleaved rounds: medians with their ranges, and ratios within a round."""

import statistics
from collections.abc import Sequence

from gateway.reporting.measured import Spread


def spread(values: Sequence[float | None]) -> Spread | None:
    """Of the values that there are; None of none."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Spread(statistics.median(known), min(known), max(known))


def ratio(values: Sequence[float | None], base: Sequence[float | None]) -> Spread | None:
    """The ratio of medians, and the smallest and largest ratio within one round. None if nothing can be divided.

    Noise that lasts longer than a round falls on both sides and leaves these nearly alone. A range that spans 1 means
    that the rounds do not tell the two apart.
    """
    pairs = [(v, b) for v, b in zip(values, base, strict=True) if v is not None and b]
    if not pairs:
        return None
    each = [v / b for v, b in pairs]
    middle = statistics.median(v for v, _ in pairs) / statistics.median(b for _, b in pairs)
    return Spread(middle, min(each), max(each))
