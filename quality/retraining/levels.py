"""What stored labels support, in levels: the table by class, a head over all keys, and the class model refitted.

The table is the candidate that the promotion gate judges. A level above it is adopted only if its squared error, in
nested cross-validation, is certainly below that of the best level before: each outer fold is predicted from the others,
within which the penalty was chosen. All are compared as a caller without labels of its own has them, and no tenant has
more than a fifth of the least labels' weight in the comparison.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.local.estimator import learned_table
from classifier.local.head_fit import fit_head, tenant_shares
from classifier.local.labels import Labels
from classifier.model.learned import LearnedHead
from classifier.model.manifest import Level
from classifier.training.fitting.class_refit import fit_classes

Float = npt.NDArray[np.float32]
Folds = npt.NDArray[np.integer]

# Levels above the table are tried from this many labels on.
LEAST_FOR_HEAD, LEAST_FOR_CLASSES = 200, 1000
MOST_OF_TENANT = LEAST_FOR_HEAD / 5
# Of a one-sided bound of 95%, in standard errors.
_ONE_SIDED = 1.645
NO_HEADS: Mapping[int, LearnedHead] = MappingProxyType({})


class Above(NamedTuple):
    """A level above the table: tried from `least` labels on, fitted on labels over a prior with one of `penalties` of
    squared weights, in labels."""

    name: str
    least: int
    fit: Callable[[Labels, Float, float], LearnedHead]
    penalties: tuple[float, ...]


ABOVE = (
    Above("head", LEAST_FOR_HEAD, fit_head, (1.0, 4.0, 16.0)),
    Above("classes", LEAST_FOR_CLASSES, fit_classes, (0.5, 4.0, 32.0)),
)


class Learned(NamedTuple):
    """`table` [4, tiers - 1]; what the last adopted level above it learned, `head`, and of each outer fold what it
    learned from the other folds, by the fold's number; none where none was adopted."""

    table: Float
    head: LearnedHead | None
    heads: Mapping[int, LearnedHead]
    levels: list[Level]


def learn(labels: Labels, fold: Folds, prior: Float) -> Learned:
    """Learn what `labels` with their outer `fold` [n] support, over `prior` [4, tiers - 1]."""
    tables = {int(number): learned_table(labels.take(fold != number), prior) for number in np.unique(fold)}
    best, by_prior = np.zeros_like(labels.scores), np.clip(labels.classes @ prior, 0.0, 1.0)
    for number, table in tables.items():
        best[fold == number] = np.clip(labels.classes[fold == number] @ table, 0.0, 1.0)
    levels = [msgspec.structs.replace(_compared("table", labels, by_prior, best), adopted=True)]
    known = int((labels.told > 0).any(axis=1).sum())
    adopted, decide = None, NO_HEADS
    for above in ABOVE:
        if known < above.least or len(tables) < 3:
            break
        heads = {
            number: fitted_level(above, labels.take(fold != number), fold[fold != number], prior) for number in tables
        }
        predicted = np.zeros_like(labels.scores)
        for number, head in heads.items():
            predicted[fold == number] = _p(head, labels.take(fold == number))
        levels.append(_compared(above.name, labels, best, predicted))
        if levels[-1].adopted:
            best, adopted, decide = predicted, above, heads
    whole = None if adopted is None else fitted_level(adopted, labels, fold, prior)
    return Learned(learned_table(labels, prior), whole, decide, levels)


def fitted_level(above: Above, labels: Labels, fold: Folds, prior: Float) -> LearnedHead:
    """Return a level with the penalty that predicts best over the folds of `labels`."""
    weights = _weights(labels)
    errors = []
    for penalty in above.penalties:
        found = np.zeros_like(labels.scores)
        for number in np.unique(fold):
            found[fold == number] = _p(
                above.fit(labels.take(fold != number), prior, penalty), labels.take(fold == number)
            )
        errors.append(float((weights * (found - np.nan_to_num(labels.scores)) ** 2).sum()))
    return above.fit(labels, prior, above.penalties[int(np.argmin(errors))])


def _p(head: LearnedHead, asked: Labels) -> Float:
    return head.p(asked.classes, asked.embedding, asked.surface)


def _compared(name: str, labels: Labels, before: Float, after: Float) -> Level:
    """Return the gain in squared error of `after` over `before`, both P(as good) [n, tiers - 1] out of fold."""
    weights, scores = _weights(labels), np.nan_to_num(labels.scores)
    weight = weights.sum(axis=1).astype(np.float64)
    gains = (weights * ((before - scores) ** 2 - (after - scores) ** 2)).sum(axis=1) / np.maximum(weight, 1e-9)
    whole = max(float(weight.sum()), 1e-9)
    gain = float((weight * gains).sum() / whole)
    error = float(np.sqrt((weight**2 * (gains - gain) ** 2).sum()) / whole)
    low, high = gain - _ONE_SIDED * error, gain + _ONE_SIDED * error
    return Level(
        name=name,
        labels=int((weight > 0).sum()),
        gain=round(gain, 5),
        low=round(low, 5),
        high=round(high, 5),
        adopted=low > 0,
    )


def _weights(labels: Labels) -> Float:
    weights: Float = labels.told * tenant_shares(labels, MOST_OF_TENANT)
    return weights
