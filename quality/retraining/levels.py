"""What stored labels support, in levels: the table by class, a head over all keys, and the class model refitted.

The table is the candidate that the promotion gate judges. A level above it replaces it only if it is certainly better
in nested cross-validation (`quality.comparison.decision_gain`): by the utility of its decisions or by its squared
error, and certainly worse by neither. Each outer fold is predicted from the others, within which the penalty
was chosen. Of several such levels the one with the most utility is adopted. All are compared as a caller without labels
of its own has them, and no tenant has more than a fifth of the least labels' weight in the comparison.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.local.cells import Labels
from classifier.local.estimator import learned_table
from classifier.local.head_fit import fit_head, tenant_shares
from classifier.model.learned import LearnedHead
from classifier.model.outcome_model import Level
from classifier.training.fitting.class_refit import fit_classes
from quality.comparison.decision_gain import Compared, Serving, different_groups, mean_gain, utility_gains
from quality.retraining.related import related

Float = npt.NDArray[np.float32]
Folds = npt.NDArray[np.integer]

# Levels above the table are tried from this many labels on.
LEAST_FOR_HEAD, LEAST_FOR_CLASSES = 200, 300
MOST_OF_TENANT = LEAST_FOR_HEAD / 5
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
    """`table` [4, tiers - 1]; what the adopted level above it learned, `head`, and of each outer fold what it learned
    from the other folds, by the fold's number; none where none was adopted."""

    table: Float
    head: LearnedHead | None
    heads: Mapping[int, LearnedHead]
    levels: list[Level]


class _Tried(NamedTuple):
    above: Above
    heads: Mapping[int, LearnedHead]
    level: Level


def learn(labels: Labels, fold: Folds, prior: Float, serving: Serving) -> Learned:
    """Learn what `labels` with their outer `fold` [n] support, over `prior` [4, tiers - 1], for a catalogue that serves
    as `serving` says."""
    tables = {int(number): learned_table(labels.take(fold != number), prior) for number in np.unique(fold)}
    by_table, by_prior = np.zeros_like(labels.scores), np.clip(labels.classes @ prior, 0.0, 1.0)
    for number, table in tables.items():
        by_table[fold == number] = np.clip(labels.classes[fold == number] @ table, 0.0, 1.0)
    groups = related(labels.embedding)
    known = int((labels.told > 0).any(axis=1).sum())
    tried: list[_Tried] = []
    for above in ABOVE:
        if known < above.least or len(tables) < 3:
            break
        heads = {
            number: fitted_level(above, labels.take(fold != number), fold[fold != number], prior) for number in tables
        }
        predicted = np.zeros_like(labels.scores)
        for number, head in heads.items():
            predicted[fold == number] = _p(head, labels.take(fold == number))
        tried.append(_Tried(above, heads, _compared(above.name, labels, by_table, predicted, groups, serving)))
    better = [one for one in tried if one.level.adopted]
    best = max(better, key=lambda one: (one.level.utility, one.level.gain), default=None)
    table_level = _compared("table", labels, by_prior, by_table, groups, serving)
    levels = [msgspec.structs.replace(table_level, adopted=True)]
    levels += [msgspec.structs.replace(one.level, adopted=one is best) for one in tried]
    if best is None:
        return Learned(learned_table(labels, prior), None, NO_HEADS, levels)
    head = fitted_level(best.above, labels, fold, prior)
    return Learned(learned_table(labels, prior), head, best.heads, levels)


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


def _compared(
    name: str, labels: Labels, before: Float, after: Float, groups: npt.NDArray[np.intp], serving: Serving
) -> Level:
    """Return the gains of `after` over `before`, both P(as good) [n, tiers - 1] out of fold, and whether it is
    better."""
    weights, scores = _weights(labels).astype(np.float64), np.nan_to_num(labels.scores)
    weight = weights.sum(axis=1)
    errors, gains = (
        (weights * by_tier).sum(axis=1) / np.maximum(weight, 1e-9)
        for by_tier in (
            (before - scores) ** 2 - (after - scores) ** 2,
            utility_gains(labels.scores, before, after, serving),
        )
    )
    error, utility = mean_gain(errors, weight, groups), mean_gain(gains, weight, groups)
    return Level(
        name=name,
        labels=int((weight > 0).sum()),
        gain=error.value,
        low=error.low,
        high=error.high,
        utility=utility.value,
        utility_low=utility.low,
        utility_high=utility.high,
        adopted=Compared(error, utility, different_groups(gains, groups)).is_better,
    )


def _weights(labels: Labels) -> Float:
    weights: Float = labels.told * tenant_shares(labels, MOST_OF_TENANT)
    return weights
