"""The learning curve: does routing get better with labels? Predict the newest labels from growing prefixes of the
earlier ones.

At each point the serving estimator is fitted on the labels that were stored when the key had that many, starting from
the estimate that AIO ships with, and is tested on later labels. All points of a curve are tested on the same labels, so
they differ by what was learned and not by what was asked.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.local.cells import Labels
from classifier.local.estimator import LocalEstimator
from classifier.local.own import LabelledRow, as_labels
from classifier.policy.utility import highest_utility, utility

Float = npt.NDArray[np.floating]

CHECKPOINTS = (0, 25, 50, 100, 200, 400)
# The newest third of the labels is predicted, up to a limit; with too few labels there is no curve.
TESTED_SHARE, MOST_TESTED, LEAST_LABELS = 1 / 3, 150, 15
# Money and quality need prompts for which every tier's answer is labelled.
LEAST_LADDERS = 5
# The keys with the most labels get a curve each.
MOST_KEYS = 8
_RESAMPLES, _SEED = 400, 7


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A value with its 95% interval, by resampling prompts (percentile bootstrap, Efron 1979)."""

    value: float
    low: float
    high: float


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True):
    """One point of a curve, at `labels` labels. `error`: the mean squared error of P(as good) on the tested labels
    (Brier score). The other fields cover the tested prompts with labels of all tiers and are None if these are too few.

    `no_worse`: share of the chosen tiers' answers that were as good as the strongest's. `saving`: share of the
    strongest tier's cost. `utility`: that of every decision. `of_oracle`: the share of the oracle's
    gain in utility over the strongest tier alone.
    """

    labels: int
    error: Measured
    no_worse: Measured | None = None
    saving: Measured | None = None
    utility: Measured | None = None
    of_oracle: Measured | None = None


class LearningCurve(msgspec.Struct, frozen=True, kw_only=True):
    """The curve of one key's labels, or of all (`key` None; "": requests without a key). `tested` labels were
    predicted; `ladders` prompts have labels of all tiers. `rate_error`: the error of each tier's own rate among the
    tested labels, the best prediction that ignores the prompt."""

    key: str | None
    tested: int
    ladders: int
    rate_error: float
    points: list[CurvePoint]


def learning_curves(rows: Sequence[LabelledRow], table: Float, exchange: float, prices: Float) -> list[LearningCurve]:
    """Return the curve of all labels, then those of the keys with the most labels.

    `rows`: oldest first. `table` [4, tiers - 1]: the estimate by class without labels. `exchange`: what a
    strongest answer is worth, in shares of answers as good. `prices` [tiers]: of an answer. Pure; takes at most some
    seconds of one core.
    """
    if len(rows) < LEAST_LABELS:
        return []
    labels, keys = as_labels(rows)
    shipped = table.astype(np.float32)
    curves = [_curve(None, labels, np.arange(len(labels)), shipped, exchange, prices)]
    counts = np.bincount(labels.key)
    largest = [key for key in np.argsort(-counts, kind="stable")[:MOST_KEYS] if counts[key] >= LEAST_LABELS]
    curves += [
        _curve(keys[key], labels, np.flatnonzero(labels.key == key), shipped, exchange, prices) for key in largest
    ]
    return curves


def checkpoints(known: int) -> list[int]:
    """Return the numbers of labels at which a curve is drawn, given `known` labels before the tested ones."""
    return [*(n for n in CHECKPOINTS if n < 0.8 * known), known]


def _curve(
    key: str | None, labels: Labels, own: npt.NDArray[np.intp], table: Float, exchange: float, prices: Float
) -> LearningCurve:
    """Compute one curve; `own`: indices of the key's labels among all."""
    tested = own[-min(int(len(own) * TESTED_SHARE), MOST_TESTED) :]
    test, known = labels.take(tested), len(own) - len(tested)
    told, scores = test.told.astype(np.float64), np.nan_to_num(test.scores).astype(np.float64)
    rate = (told * scores).sum(axis=0) / np.maximum(told.sum(axis=0), 1e-9)
    ladders = (test.told > 0).all(axis=1)
    even = np.full(len(test), 1 / len(test))
    draws = np.random.default_rng(_SEED).multinomial(len(test), even, _RESAMPLES).astype(np.float64)
    points = []
    for count in checkpoints(known):
        predicted = _predicted(labels.take(np.arange(own[count])), test, table)
        errors = told * (predicted - scores) ** 2
        point = CurvePoint(labels=count, error=_ratio(errors.sum(axis=1), told.sum(axis=1), draws))
        if ladders.sum() >= LEAST_LADDERS:
            point = _with_utility(point, predicted[ladders], scores[ladders], exchange, prices, draws[:, ladders])
        points.append(point)
    return LearningCurve(
        key=key,
        tested=len(test),
        ladders=int(ladders.sum()),
        rate_error=round(float((told * (rate - scores) ** 2).sum() / max(told.sum(), 1e-9)), 4),
        points=points,
    )


def _predicted(known: Labels, test: Labels, table: Float) -> Float:
    """Return P(as good) [n, tiers - 1] of the prompts of `test`, as served with the labels `known`."""
    asked = {int(key) for key in np.unique(test.key)}
    if not len(known):
        return np.clip(test.classes @ table.astype(np.float32), 0.0, 1.0)
    estimator = LocalEstimator(known, table.astype(np.float32), keys=asked)
    found = np.zeros(test.scores.shape)
    for key, context, tenant in {*zip(test.key.tolist(), test.context.tolist(), test.tenant.tolist(), strict=True)}:
        at = (test.key == key) & (test.context == context)
        found[at] = estimator.score(test.classes[at], test.embedding[at], test.surface[at], key, context, tenant)
    return np.clip(found, 0.0, 1.0)


def _with_utility(
    point: CurvePoint, p_ok: Float, scores: Float, exchange: float, prices: Float, draws: Float
) -> CurvePoint:
    """Return `point` with the results of the default rule on prompts with labels of all tiers."""
    each, ones = np.arange(len(p_ok)), np.ones(len(p_ok))
    quality = np.column_stack((scores, ones))
    share = prices / prices[-1]
    utilities = utility(quality, prices, prices[-1], exchange)
    chosen = highest_utility(np.column_stack((p_ok, ones)), prices, exchange)
    gained = utilities[each, chosen] - utilities[:, -1]
    possible = utilities.max(axis=1) - utilities[:, -1]
    return msgspec.structs.replace(
        point,
        no_worse=_ratio(quality[each, chosen], ones, draws),
        saving=_ratio(1 - share[chosen], ones, draws),
        utility=_ratio(utilities[each, chosen], ones, draws),
        of_oracle=_ratio(gained, possible, draws) if possible.sum() > 0 else None,
    )


def _ratio(part: Float, whole: Float, draws: Float) -> Measured:
    """Return the ratio of two sums over prompts, with its interval over `draws` [resamples, n]."""
    below = draws @ whole
    drawn = (draws @ part)[below > 0] / below[below > 0]
    value = float(part.sum() / whole.sum()) if whole.sum() > 0 else 0.0
    low, high = np.percentile(drawn, (2.5, 97.5)) if len(drawn) else (value, value)
    return Measured(value=round(value, 4), low=round(float(low), 4), high=round(float(high), 4))
