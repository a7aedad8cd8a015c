"""How good probabilities are on a subset: ranking pooled and within domain, Brier, calibration."""

from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.training import metrics
from classifier.training.dataset import HEADS
from classifier.training.platt import logit
from classifier.training.routing import Estimate, estimate
from classifier.training.subsets import Subset

Float64 = npt.NDArray[np.float64]
AUC_DRAWS, SLOPE_DRAWS = 300, 100


class ProbabilityMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """One predictor of one head on one subset.

    `over_domain`: AUC minus that of the domain-label row, paired; None for that row itself and where it has none.
    `ece_band`: what a perfectly calibrated model with these probabilities stays below in 95 % of samples of this size.
    `brier_of_rate`: of always predicting the subset's own rate.
    """

    subset: str
    head: str
    predictor: str
    rows: int
    rate: float
    auc: Estimate | None
    auc_within: Estimate | None
    over_domain: Estimate | None
    brier: float
    brier_of_rate: float
    ece: float
    ece_band: float
    slope: Estimate | None


class ReliabilityBin(msgspec.Struct, frozen=True, kw_only=True):
    """One tenth of the rows by predicted probability: what was predicted, what happened, and the 95 % interval that a
    perfectly calibrated model's rate falls into."""

    predicted: float
    observed: float
    low: float
    high: float
    rows: int


class Reliability(msgspec.Struct, frozen=True, kw_only=True):
    """The reliability diagram of one head on one subset."""

    subset: str
    head: str
    predictor: str
    bins: list[ReliabilityBin]


def probability_metrics(
    one: Subset, p: Mapping[str, Float64], domain_label: str, seed: int = 0
) -> list[ProbabilityMetrics]:
    """Metrics of every predictor and head. `p`: name → probabilities [rows of the subset, heads]."""
    found = []
    for head in one.heads():
        y = one.labels[:, head]
        reference: Float64 | None = None
        if domain_label in p and not np.isnan(p[domain_label][:, head]).any():
            reference = _auc(one, y, p[domain_label][:, head])
        for name, every in p.items():
            score = every[:, head]
            if np.isnan(score).any():
                continue
            found.append(_metrics(one, head, name, y, score, None if name == domain_label else reference, seed))
    return found


def _auc(one: Subset, y: Float64, score: Float64, within: bool = False) -> Float64:
    """AUC, then its bootstrap draws."""
    return metrics.auc(y, score, one.domain if within else None, one.weights[: AUC_DRAWS + 1]).astype(np.float64)


def _metrics(
    one: Subset, head: int, name: str, y: Float64, score: Float64, reference: Float64 | None, seed: int
) -> ProbabilityMetrics:
    pooled, within = _auc(one, y, score), _auc(one, y, score, within=True)
    over = None if reference is None else _estimate(pooled - reference)
    slopes = calibration_slopes(y, score, one.weights[: SLOPE_DRAWS + 1])
    return ProbabilityMetrics(
        subset=one.name,
        head=HEADS[head],
        predictor=name,
        rows=len(y),
        rate=round(float(y.mean()), 4),
        auc=_estimate(pooled),
        auc_within=_estimate(within),
        over_domain=over,
        brier=round(metrics.brier(y, score), 4),
        brier_of_rate=round(float(y.mean() * (1 - y.mean())), 4),
        ece=round(metrics.calibration_error(y, score), 4),
        ece_band=round(metrics.calibration_band(score, seed), 4),
        slope=_estimate(slopes),
    )


def _estimate(values: Float64) -> Estimate | None:
    """The first value with the interval of the others; None where nothing could be compared."""
    known = values[1:][~np.isnan(values[1:])]
    if np.isnan(values[0]) or not len(known):
        return None
    return estimate(float(values[0]), known)


def calibration_slopes(y: Float64, p: Float64, weights: Float64) -> Float64:
    """Slope of a logistic fit of the outcome on the predicted logit, for each row of `weights` [b, n]: [b].

    1 is right, below 1 is too sure (Cox 1958). NaN where all probabilities are equal.
    """
    z = logit(p)
    if z.max() - z.min() < 1e-9:
        return np.full(len(weights), np.nan)
    centre, scale = float(z.mean()), float(z.std())
    x = (z - centre) / scale
    bias, slope = np.zeros(len(weights)), np.full(len(weights), scale)
    for _ in range(25):
        mean = 1 / (1 + np.exp(-np.clip(bias[:, None] + slope[:, None] * x, -30, 30)))
        residual, curvature = weights * (y - mean), weights * mean * (1 - mean)
        a, b, c = curvature.sum(1) + 1e-6, curvature @ x, curvature @ (x * x) + 1e-6
        g, h = residual.sum(1), residual @ x
        steps = np.stack([(c * g - b * h), (a * h - b * g)]) / np.maximum(a * c - b * b, 1e-9)
        # Steps are bounded: far from the optimum the quadratic model of Newton's method is no guide.
        bias, slope = bias + np.clip(steps[0], -2, 2), slope + np.clip(steps[1], -2, 2)
        if np.abs(steps).max() < 1e-6:
            break
    return slope / scale


def reliability(one: Subset, head: int, name: str, p: Float64) -> Reliability:
    """The diagram of `p` [n] over ten bins of equal size."""
    y = one.labels[:, head]
    bins = []
    for members in np.array_split(np.argsort(p, kind="stable"), metrics.BINS):
        if not len(members):
            continue
        predicted = float(p[members].mean())
        spread = 1.96 * float(np.sqrt((p[members] * (1 - p[members])).sum())) / len(members)
        bins.append(
            ReliabilityBin(
                predicted=round(predicted, 4),
                observed=round(float(y[members].mean()), 4),
                low=round(max(predicted - spread, 0.0), 4),
                high=round(min(predicted + spread, 1.0), 4),
                rows=len(members),
            )
        )
    return Reliability(subset=one.name, head=HEADS[head], predictor=name, bins=bins)
