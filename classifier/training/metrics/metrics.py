"""Metrics of probabilities: AUC pooled and within groups, Brier score, calibration error with a perfect model's
band."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from classifier.training.fitting.logistic import fit_logistic

Array = npt.NDArray[np.floating]
BINS = 10


@lru_cache(16)
def resamples(n: int, times: int, seed: int) -> npt.NDArray[np.float32]:
    """Return bootstrap weights [times, n]: how often each row is drawn. Read-only, because the result is cached."""
    drawn = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=times).astype(np.float32)
    drawn.flags.writeable = False
    return drawn


def interval(draws: Array, level: float = 0.95) -> tuple[float, float]:
    """Return the percentile interval of bootstrap draws; NaN draws (no pair to compare) are left out."""
    finite = draws[~np.isnan(draws)]
    if not len(finite):
        return float("nan"), float("nan")
    low, high = np.quantile(finite, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def auc(y: Array, p: Array, group: npt.NDArray[np.generic] | None = None, weights: Array | None = None) -> Array:
    """Return the share of (right, wrong) pairs that `p` ranks correctly, ties half; with `group` within a group.

    `weights` [b, n] gives b bootstrap values; without it the result has one element. NaN if there is no pair.
    """
    w = np.ones((1, len(y)), np.float32) if weights is None else weights
    won, pairs = np.zeros(len(w)), np.zeros(len(w))
    for member in [np.ones(len(y), bool)] if group is None else [group == g for g in np.unique(group)]:
        order = np.argsort(p[member], kind="stable")
        score, right = p[member][order], y[member][order] > 0.5
        starts = np.flatnonzero(np.append(True, score[1:] != score[:-1]))
        drawn = w[:, member][:, order].astype(np.float64)
        positive = np.add.reduceat(drawn * right, starts, axis=1)
        negative = np.add.reduceat(drawn * ~right, starts, axis=1)
        below = np.cumsum(negative, axis=1) - 0.5 * negative
        won += (positive * below).sum(axis=1)
        pairs += positive.sum(axis=1) * negative.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(pairs > 0, won / pairs, np.nan)


def brier(y: Array, p: Array) -> float:
    """Return the mean squared error of the probability."""
    return float(np.mean((p - y) ** 2))


def calibration_error(y: Array, p: Array) -> float:
    """Return the expected calibration error over ten bins of equal size."""
    bins = np.array_split(np.argsort(p, kind="stable"), BINS)
    return float(sum(abs(y[b].sum() - p[b].sum()) for b in bins if len(b)) / len(y))


def calibration_band(p: Array, seed: int, times: int = 500) -> float:
    """Return the 95th percentile of the calibration error of a perfect model with these probabilities (RT-06)."""
    p = np.sort(p)
    drawn = np.random.default_rng(seed).random((times, len(p)), dtype=np.float32) < p
    # The bins of `calibration_error`: as equal as possible, the longer ones first.
    starts = np.cumsum([0, *(len(b) for b in np.array_split(p, min(BINS, len(p)))[:-1])])
    missed = np.add.reduceat(drawn, starts, axis=1, dtype=np.float64) - np.add.reduceat(p, starts)
    return float(np.quantile(np.abs(missed).sum(axis=1) / len(p), 0.95))


def calibration_slope(y: Array, p: Array) -> float:
    """Return the slope of a logistic fit of outcomes on predicted logits; 1 is calibrated, below 1 overconfident."""
    logit = np.log(p / (1 - p)).astype(np.float64)
    coef, _ = fit_logistic(logit[:, None], y.astype(np.float64), np.ones(len(y)), c=1e6)
    return float(coef[0])


def calibration_slope_interval(y: Array, p: Array) -> tuple[float, float, float] | None:
    """Return the slope of `calibration_slope` with its 95% interval, by the information of the fit; None where
    outcomes or probabilities are all alike, which determine none. Probabilities are first clipped to [0.001, 0.999]."""
    clipped = np.clip(p.astype(np.float64), 0.001, 0.999)
    logit = np.log(clipped / (1 - clipped))
    if len(np.unique(y)) < 2 or len(np.unique(logit)) < 2:
        return None
    coef, bias = fit_logistic(logit[:, None], y.astype(np.float64), np.ones(len(y)), c=1e6)
    fitted = 1.0 / (1.0 + np.exp(-(coef[0] * logit + bias)))
    weight = fitted * (1 - fitted)
    # The variance of a slope: one over its weighted squares about their weighted mean.
    spread = float(weight @ (logit - weight @ logit / weight.sum()) ** 2)
    half = 1.959963984540054 / spread**0.5 if spread > 0 else float("inf")
    return float(coef[0]), float(coef[0]) - half, float(coef[0]) + half
