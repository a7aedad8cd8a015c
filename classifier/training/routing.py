"""Routing on rows of known outcomes: choices, cost-quality curves, and the cost-matched shuffled control."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from classifier.manifest import CurvePoint
from classifier.training.metrics import apgr, resamples
from classifier.worth import COST_WEIGHT as COST_WEIGHT
from classifier.worth import PRICES as PRICES
from classifier.worth import Rule as Rule
from classifier.worth import choose as choose
from classifier.worth import utility as utility

Float = npt.NDArray[np.floating]

LAMBDAS = (0.0, *np.geomspace(1e-3, 3.0, 60).tolist())
TAUS = tuple(np.linspace(0.0, 1.0, 101).tolist())
GRID: dict[Rule, tuple[float, ...]] = {"lambda": LAMBDAS, "tau": TAUS}


class Estimate(NamedTuple):
    """A value with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


def best_parameter(p_ok: Float, score: Float, prices: Float, rule: Rule, *, times: int = 200) -> float:
    """The grid's parameter of greatest mean utility on these rows (the valid split).

    Utility is flat around its maximum, so the median over bootstrap resamples of the rows is taken: it moves less from
    sample to sample than the one best point.
    """
    worth = utility(score, prices)
    rows = np.arange(len(score))
    each = np.stack([worth[rows, choose(p_ok, prices, rule, t)] for t in GRID[rule]], axis=1)
    best = np.argmax(np.round(resamples(len(score), times, seed=0) @ each, 6), axis=1)
    return GRID[rule][int(np.median(best))]


def curve(p_ok: Float, no_worse: Float, correct: Float, prices: Float, rule: Rule) -> list[CurvePoint]:
    """The rule's cost-quality curve; all arrays [n, tiers], rows with every tier's outcome."""
    rows = np.arange(len(p_ok))
    points = []
    for parameter in GRID[rule]:
        pick = choose(p_ok, prices, rule, parameter)
        points.append(
            CurvePoint(
                parameter=round(float(parameter), 6),
                no_worse=round(float(no_worse[rows, pick].mean()), 6),
                quality=round(float(correct[rows, pick].mean()), 6),
                cost_share=round(float((prices / prices[-1])[pick].mean()), 6),
            )
        )
    return points


def mean_estimate(values: Float, weights: Float) -> Estimate:
    """Mean of `values` [n] with its interval under bootstrap `weights` [b, n]."""
    return estimate(float(values.mean()), weights @ values / len(values))


def gain_over_shuffled(worth: Float, pick: npt.NDArray[np.intp], weights: Float) -> Estimate:
    """Utility of the choices minus that of the same choices dealt out at random, which cost the same.

    The shuffled control is exact (the mean over all permutations: share of each tier times its mean), and both are
    drawn from the same resamples: a paired bootstrap.
    """
    n, tiers = worth.shape
    chosen = worth[np.arange(n), pick]
    onehot = np.eye(tiers)[pick]

    def shuffled(w: Float) -> Float:
        return np.asarray(((w @ onehot / n) * (w @ worth / n)).sum(axis=-1))

    draws = weights @ chosen / n - shuffled(weights)
    return estimate(float(chosen.mean() - shuffled(np.ones(n))), draws)


def apgr_estimate(score: Float, need: Float, weights: Float) -> Estimate:
    """APGR of ranking by `need` [n] between the first and the last column of `score`, with its interval."""
    rows = np.arange(len(score))
    draws = []
    for w in weights:
        drawn = np.repeat(rows, w.astype(np.int64))
        draws.append(apgr(score[drawn, 0], score[drawn, -1], need[drawn]))
    return estimate(apgr(score[:, 0], score[:, -1], need), np.array(draws))


def estimate(value: float, draws: Float) -> Estimate:
    """`value` with the percentile interval of its bootstrap `draws`."""
    low, high = np.quantile(draws, [0.025, 0.975])
    return Estimate(round(value, 6), round(float(low), 6), round(float(high), 6))


def share_of_tiers(pick: npt.NDArray[np.intp], tiers: Sequence[int]) -> dict[str, float]:
    """Tier → share of the choices, columns of `pick` being `tiers`."""
    return {str(t): round(float(np.mean(pick == i)), 4) for i, t in enumerate(tiers)}
