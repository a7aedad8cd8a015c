"""Figures of rounds: medians with their ranges, ratios within a round, and ratios with a 95% interval."""

import math
import statistics
from collections.abc import Sequence

from benchmarks.report.measured import Spread

# The 97.5th percentile of Student's t by degrees of freedom; beyond, of the normal distribution.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


def spread(values: Sequence[float | None]) -> Spread | None:
    """Of the values that there are; None of none."""
    present = [value for value in values if value is not None]
    if not present:
        return None
    return Spread(statistics.median(present), min(present), max(present))


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


def geometric_interval(ratios: Sequence[float]) -> Spread:
    """The geometric mean and its 95% interval by Student's t over logarithms; of one ratio, all there is."""
    logs = [math.log(ratio) for ratio in ratios]
    mean, degrees = statistics.fmean(logs), len(logs) - 1
    if not degrees:
        return Spread(ratios[0], 0.0, math.inf)
    return _interval(mean, statistics.stdev(logs) / math.sqrt(len(logs)), degrees)


def paired(base: Sequence[float], other: Sequence[float]) -> tuple[Spread, Spread, Spread]:
    """Both with their extremes, and `other` over `base`: the geometric mean of the pairs, with its interval.

    Raises ValueError without rounds, or if the numbers of rounds differ.
    """
    left, right = spread(base), spread(other)
    if left is None or right is None:
        raise ValueError("there are no rounds to pair")
    return left, right, geometric_interval([b / a for a, b in zip(base, other, strict=True)])


def ratio_of_runs(values: Sequence[float | None], base: Sequence[float | None]) -> Spread | None:
    """The ratio of the geometric means of two runs whose rounds were not interleaved, with its 95% interval by Welch's
    t over logarithms.

    With a single round on either side the interval is everything, 0 to infinity. None if a side has no positive value.
    """
    samples = [[math.log(value) for value in side if value] for side in (values, base)]
    if not all(samples):
        return None
    mean = statistics.fmean(samples[0]) - statistics.fmean(samples[1])
    if min(map(len, samples)) < 2:
        return Spread(math.exp(mean), 0.0, math.inf)
    parts = [statistics.variance(side) / len(side) for side in samples]
    if not sum(parts):
        return Spread(math.exp(mean), math.exp(mean), math.exp(mean))
    # Welch and Satterthwaite: between the smaller side's degrees of freedom and both together.
    degrees = sum(parts) ** 2 / sum(part**2 / (len(side) - 1) for part, side in zip(parts, samples, strict=True))
    return _interval(mean, math.sqrt(sum(parts)), max(1, int(degrees)))


def _interval(mean: float, error: float, degrees: int) -> Spread:
    """exp(mean) with the 95% interval of a mean of logarithms whose standard error is `error`."""
    half = (_T[degrees - 1] if degrees <= len(_T) else 1.96) * error
    return Spread(math.exp(mean), math.exp(mean - half), math.exp(mean + half))
