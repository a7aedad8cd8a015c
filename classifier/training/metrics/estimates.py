"""Estimates with bootstrap intervals, and the constants of all comparisons of versions: rows, resamples, tolerance."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.floating]

RESAMPLES = 1000
MIN_ROWS = 50  # with fewer rows intervals are meaningless
ECE_TOLERANCE = 0.03  # beyond a perfect model's band; some hundred rows allow no finer bound


class Estimate(NamedTuple):
    """A value with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


def estimate(value: float, draws: Float) -> Estimate:
    """Return `value` with the percentile interval of its bootstrap `draws`."""
    low, high = np.quantile(draws, [0.025, 0.975])
    return Estimate(round(value, 6), round(float(low), 6), round(float(high), 6))
