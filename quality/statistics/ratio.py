"""The ratio of two totals, estimated from a weighted sample, with its standard error."""

from collections.abc import Sequence
from math import sqrt
from statistics import NormalDist

import msgspec

_Z95 = NormalDist().inv_cdf(0.975)


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """`value` and its standard `error`; `size` is the effective number of observations (Kish 1965)."""

    value: float
    error: float
    size: float

    @property
    def half_width(self) -> float | None:
        """Half of the 95% interval, by Student's t; None for fewer than three observations."""
        return self.error * student_975(self.size - 1) if self.size >= 3 else None


def weighted_ratio(
    numerators: Sequence[float], denominators: Sequence[float], weights: Sequence[float]
) -> Ratio | None:
    """Estimate the ratio of two totals of a population from a sample drawn with inverse probabilities `weights`
    (Cochran, Sampling Techniques, 6.4). None without a positive total below the line."""
    below = sum(w * x for w, x in zip(weights, denominators, strict=True))
    if below <= 0:
        return None
    value = sum(w * y for w, y in zip(weights, numerators, strict=True)) / below
    squares = sum((w * (y - value * x)) ** 2 for w, x, y in zip(weights, denominators, numerators, strict=True))
    size = sum(weights) ** 2 / sum(w * w for w in weights)
    # Equal weights leave a size that is whole but for rounding.
    spread = squares * size / (size - 1) if size > 1 + 1e-6 else squares
    return Ratio(value=value, error=sqrt(spread) / below, size=size)


def student_975(freedom: float) -> float:
    """The 97.5% quantile of Student's t for at least two degrees of freedom, by the expansion of Cornish and Fisher; it
    is within 1% from four degrees on."""
    z = _Z95
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )
