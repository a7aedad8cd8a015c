"""Evidence and bounds: two that hold at every time at once, however often one looks, two tests, a ratio estimate, and
estimates with bootstrap intervals.

Betting (`wealth`, `evidence`): Waudby-Smith and Ramdas ("Estimating means of bounded random variables by betting",
2024). If the mean of each gain, given those before it, is at most 0, the wealth of a bettor on gains is a nonnegative
supermartingale that starts at 1, so the probability that it ever reaches 1/a is at most a (Ville), under any
monitoring and stopping rule.

Confidence sequences (`sums_of`, `deviation`): the bound is on the average of the values' conditional means so far, so
values may drift and depend on the past. It is the empirical-Bernstein bound of Howard, Ramdas, McAuliffe and Sekhon
("Time-uniform, nonparametric, nonasymptotic confidence sequences", 2021, theorem 4) with a mixture over a grid. For a
value x of conditional mean m that is never more than c below a centre chosen beforehand, exp(b (x - m)/c - psi(b)
((x - centre)/c)^2) has mean at most 1, with psi(b) = -log(1 - b) - b (Fan, Grama and Liu 2015). The products over
values, and their mean over `BETS`, are nonnegative supermartingales.

Tests: the exact McNemar test of whether one of two systems is right more often on the same tasks; Welch's test of two
means of independent values, from their moments alone (Welch, "The generalization of Student's problem when several
different population variances are involved", Biometrika 34, 1947). `Ratio` is that of two totals, estimated from a
weighted sample, with its standard error."""

from collections.abc import Sequence
from math import comb, erfc, log, log1p, sqrt
from statistics import NormalDist
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.floating]

# Fractions of the largest possible bet. Wealth is the mean over all, so each costs at most a factor of six.
STAKES = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
# Of all comparisons of versions.
RESAMPLES = 1000
MIN_ROWS = 50  # with fewer rows intervals are meaningless
ECE_TOLERANCE = 0.03  # beyond a perfect model's band; some hundred rows allow no finer bound


def wealth(gains: Float, most_lost: float) -> Float:
    """Return the wealth [n] after each of `gains` [n], none of which may be below `-most_lost`.

    Raises `ValueError` for a lower gain: the bound must be known beforehand.
    """
    if len(gains) and float(gains.min()) < -most_lost - 1e-9:
        raise ValueError(f"a gain of {float(gains.min())} is below the least possible, {-most_lost}")
    bets = np.array(STAKES)[:, None] / most_lost
    # Capped at e^500 to avoid overflow; larger values change no decision.
    after: Float = np.exp(np.minimum(np.cumsum(np.log1p(bets * gains[None, :]), axis=1), 500.0)).mean(axis=0)
    return after


def evidence(gains: Float, most_lost: float) -> float:
    """Return the greatest wealth so far, at least 1: evidence against `gains` being 0 or less on average."""
    return max(1.0, float(wealth(gains, most_lost).max(initial=1.0)))


# The smallest serves some 10^6 values, the largest the first dozens.
BETS = np.geomspace(0.004, 0.8, 12)
_PSI = -np.log1p(-BETS) - BETS
_BISECTIONS = 40


class Sums(NamedTuple):
    """Sums of values so far."""

    total: Float
    """[n], in units of `scale`."""
    variance: Float
    """[n]: sum of squared distances from the centres that were known before each value."""
    scale: float
    """The c of the bound, on both sides."""


def sums_of(values: Float, least: float, most: float, centres: tuple[float, float] | None = None) -> Sums:
    """Return the sums after each of `values` [n], which lie in [`least`, `most`].

    The centre of a value is the mean of those before it, with one of 0 first, and cut to `centres` (lowest, highest): a
    narrow range around the expected mean makes the scale smaller. Raises `ValueError` for a value out of its range.
    """
    if len(values) and (float(values.min()) < least - 1e-9 or float(values.max()) > most + 1e-9):
        raise ValueError(f"values from {float(values.min())} to {float(values.max())}; allowed: {least} to {most}")
    lowest, highest = centres or (least, most)
    scale = max(highest - least, most - lowest)
    before = np.concatenate([[0.0], np.cumsum(values)[:-1]]) if len(values) else np.zeros(0)
    centre = np.clip(before / np.arange(1, len(values) + 1), lowest, highest)
    return Sums(np.cumsum(values) / scale, np.cumsum(np.square((values - centre) / scale)), scale)


def log_evidence(excess: Float, variance: Float) -> Float:
    """Return the logarithm [n] of the evidence that the mean is higher than supposed, by the `excess` [n] of the total
    over what was supposed. It exceeds log(1/a) at any time with probability at most a if the supposition is right."""
    exponents = np.multiply.outer(excess, BETS) - np.multiply.outer(variance, _PSI)
    top = exponents.max(axis=-1, keepdims=True)
    logarithm: Float = np.log(np.exp(exponents - top).mean(axis=-1)) + top[..., 0]
    return logarithm


def deviation(variance: Float, level: float) -> Float:
    """Return how far [n] the total may lie from the sum of the means on one side, at any time with probability at most
    `level`; in units of the scale. It rises with the variance."""
    variance = np.asarray(variance, np.float64)
    # The evidence lies between a twelfth of its greatest term and this term.
    terms = np.multiply.outer(variance, _PSI)
    low = ((log(1 / level) + terms) / BETS).min(axis=-1)
    high = ((log(len(BETS) / level) + terms) / BETS).min(axis=-1)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        reached = log_evidence(middle, variance) >= log(1 / level)
        low, high = np.where(reached, low, middle), np.where(reached, middle, high)
    return np.asarray(high)


def values_needed(gap: float, variance: float, scale: float, level: float, most: int) -> int:
    """Return after how many values of this `variance` a bound is within `gap` of their mean; at most `most`."""
    spread = variance / scale**2

    def is_near(count: int) -> bool:
        return float(deviation(np.array(count * spread), level)) * scale / count <= gap

    if not is_near(most):
        return most
    low, high = 0, 1
    while not is_near(high):
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_near(middle) else (middle, high)
    return high


def better_p_value(gains: int, losses: int) -> float:
    """Return the one-sided p-value of "not better": P(X >= gains) for X ~ Binomial(gains + losses, 1/2) (McNemar 1947).

    `gains` are tasks that only the first got right, `losses` tasks that only the second did; tasks with equal results
    carry no information. 1.0 without either. Computed exactly in integers. Raises ValueError for a negative count.
    """
    if gains < 0 or losses < 0:
        raise ValueError(f"gains is {gains} and losses is {losses}; neither may be negative")
    discordant = gains + losses
    favourable = sum(comb(discordant, k) for k in range(gains, discordant + 1))
    return favourable / (1 << discordant)


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """Independent values."""

    size: int
    """The number of values."""
    mean: float
    variance: float
    """Unbiased, in the square of the mean's unit."""


def exceeds_p_value(new: Sample, old: Sample, factor: float = 1.0) -> float:
    """Return the one-sided p-value of "the mean of `new` is at most `factor` times that of `old`".

    The difference is tested, not a ratio: a mean of 0 is allowed. Values that do not vary leave nothing to chance: the
    p-value is 0 or 1 then. Raises `ValueError` for fewer than two values on a side.
    """
    if min(new.size, old.size) < 2:
        raise ValueError(f"the samples have {new.size} and {old.size} values; a variance needs 2")
    difference = new.mean - factor * old.mean
    parts = [(new.variance / new.size, new.size), (factor * factor * old.variance / old.size, old.size)]
    squared_error = sum(part for part, _ in parts)
    if squared_error <= 0:
        return 0.0 if difference > 0 else 1.0
    freedom = squared_error**2 / sum(part * part / (size - 1) for part, size in parts)
    return student_tail(difference / sqrt(squared_error), freedom)


def student_tail(t: float, freedom: float) -> float:
    """Return P(T >= t) of Student's t with `freedom` degrees, at least 1, by Wallace's normal approximation ("Bounds on
    normal approximations to Student's and the chi-square distributions", Annals of Mathematical Statistics 30, 1959):
    within 3% of the exact value from 5 degrees on, down to a probability of 1e-4."""
    z = (8 * freedom + 1) / (8 * freedom + 3) * sqrt(freedom * log1p(t * t / freedom))
    tail = erfc(z / sqrt(2)) / 2
    return tail if t >= 0 else 1 - tail


_Z95 = NormalDist().inv_cdf(0.975)


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """`value` and its standard `error`."""

    value: float
    """The ratio; `error` is its standard error."""
    error: float
    size: float
    """The effective number of observations (Kish 1965)."""

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


class Estimate(NamedTuple):
    """A value with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


def estimate(value: float, draws: Float) -> Estimate:
    """Return `value` with the percentile interval of its bootstrap `draws`."""
    low, high = np.quantile(draws, [0.025, 0.975])
    return Estimate(round(value, 6), round(float(low), 6), round(float(high), 6))
