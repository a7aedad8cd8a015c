"""Confidence sequences: bounds on a mean of bounded values that hold at every time at once, however often one looks.

The bound is on the average of the values' conditional means so far, so values may drift and depend on the past. It is
the empirical-Bernstein bound of Howard, Ramdas, McAuliffe and Sekhon ("Time-uniform, nonparametric, nonasymptotic
confidence sequences", 2021, theorem 4) with a mixture over a grid. For a value x of conditional mean m that is never
more than c below a centre chosen beforehand, exp(b (x - m)/c - psi(b) ((x - centre)/c)^2) has mean at most 1, with
psi(b) = -log(1 - b) - b (Fan, Grama and Liu 2015). The products over values, and their mean over `BETS`, are
nonnegative supermartingales.
"""

from math import log
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.floating]

# The smallest serves some 10^6 values, the largest the first dozens.
BETS = np.geomspace(0.004, 0.8, 12)
_PSI = -np.log1p(-BETS) - BETS
_BISECTIONS = 40


class Sums(NamedTuple):
    """Of values so far, in units of `scale`: the `total` [n], and the sum of squared distances from the centres that
    were known before each value, `variance` [n]. `scale` is the c of the bound, on both sides."""

    total: Float
    variance: Float
    scale: float


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
    found: Float = np.log(np.exp(exponents - top).mean(axis=-1)) + top[..., 0]
    return found


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
