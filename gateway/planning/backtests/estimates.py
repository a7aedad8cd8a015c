"""Estimates with 95% intervals for back-tests, by the delta method: one pass over any number of rows, no resampling."""

import msgspec
import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float64]
Choice = npt.NDArray[np.intp]

_Z = 1.959963984540054


class Interval(msgspec.Struct, frozen=True):
    """A value with its 95% interval."""

    value: float
    low: float
    high: float


def saving(costs: Float, baseline: Float) -> Interval:
    """1 - the ratio of sums of `costs` [n] and `baseline` [n]; paired, so that common variation cancels."""
    ratio = float(costs.sum() / baseline.sum())
    return _interval(1 - ratio, (costs - ratio * baseline) / baseline.mean())


def gain_over_shuffled(worth: Float, chosen: Choice, group: Choice) -> Interval:
    """Mean value of the chosen tiers minus that of the same choices assigned at random within each group.

    `worth` [n, tiers], NaN where unknown, which is never chosen; `group` [n]: rows with the same known tiers. The
    difference is the router's information, at equal cost.
    """
    n = len(worth)
    gains, influence = np.zeros(n), np.zeros(n)
    for number in np.unique(group):
        rows = np.flatnonzero(group == number)
        known = np.flatnonzero(~np.isnan(worth[rows[0]]))
        values = worth[np.ix_(rows, known)]
        picked = (known[None, :] == chosen[rows, None]).astype(np.float64)
        got = (values * picked).sum(axis=1)
        share, mean = picked.mean(axis=0), values.mean(axis=0)
        gains[rows] = got.mean() - share @ mean
        influence[rows] = (got - got.mean()) - (picked - share) @ mean - (values - mean) @ share
    value = float(gains.mean())
    return _interval(value, influence + gains - value)


def _interval(value: float, influence: Float) -> Interval:
    """`influence` [n]: how much each row moves the estimate, times n."""
    half = _Z * float(np.sqrt(np.mean(influence**2) / len(influence)))
    return Interval(value, value - half, value + half)
