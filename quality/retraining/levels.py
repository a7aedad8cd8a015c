"""What stored labels support, in levels: the table by class, then a head over all keys, if it wins on unseen labels.

The table is the candidate that the promotion gate judges. A head is adopted only if its squared error, in nested
cross-validation, is certainly below the table's: each outer fold is predicted from the others, within which the penalty
was chosen. Both are compared as a caller without labels of its own has them, and no tenant has more than a fifth of the
least labels' weight in the comparison.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.local.estimator import learned_table
from classifier.local.head_fit import fit_head, tenant_shares
from classifier.local.labels import Labels
from classifier.model.catalogue_head import CatalogueHead
from classifier.model.manifest import Level

Float = npt.NDArray[np.float32]
Folds = npt.NDArray[np.integer]

# A head is tried from this many labels on.
LEAST_FOR_HEAD = 200
# Penalties of a head's squared weights, in labels.
PENALTIES = (1.0, 4.0, 16.0)
MOST_OF_TENANT = LEAST_FOR_HEAD / 5
# Of a one-sided bound of 95%, in standard errors.
_ONE_SIDED = 1.645
NO_HEADS: Mapping[int, CatalogueHead] = MappingProxyType({})


class Learned(NamedTuple):
    """`table` [4, tiers - 1]; the adopted `head`, and of each outer fold the one that was fitted on the other folds, by
    the fold's number; none where it was not adopted."""

    table: Float
    head: CatalogueHead | None
    heads: Mapping[int, CatalogueHead]
    levels: list[Level]


def learn(labels: Labels, fold: Folds, prior: Float) -> Learned:
    """Learn what `labels` with their outer `fold` [n] support, over `prior` [4, tiers - 1]."""
    tables = {int(number): learned_table(labels.take(fold != number), prior) for number in np.unique(fold)}
    by_table, by_prior = np.zeros_like(labels.scores), np.clip(labels.classes @ prior, 0.0, 1.0)
    for number, table in tables.items():
        by_table[fold == number] = np.clip(labels.classes[fold == number] @ table, 0.0, 1.0)
    levels = [msgspec.structs.replace(_compared("table", labels, by_prior, by_table), adopted=True)]
    table = learned_table(labels, prior)
    if int((labels.told > 0).any(axis=1).sum()) < LEAST_FOR_HEAD or len(tables) < 3:
        return Learned(table, None, NO_HEADS, levels)
    heads = {number: _fitted(labels.take(fold != number), fold[fold != number], prior) for number in tables}
    by_head = np.zeros_like(labels.scores)
    for number, head in heads.items():
        mine = labels.take(fold == number)
        by_head[fold == number] = head.p(mine.classes, mine.embedding, mine.surface)
    levels.append(_compared("head", labels, by_table, by_head))
    if not levels[-1].adopted:
        return Learned(table, None, NO_HEADS, levels)
    return Learned(table, _fitted(labels, fold, prior), heads, levels)


def _fitted(labels: Labels, fold: Folds, prior: Float) -> CatalogueHead:
    """Return a head with the penalty that predicts best over the folds of `labels`."""
    weights = _weights(labels)
    errors = []
    for penalty in PENALTIES:
        found = np.zeros_like(labels.scores)
        for number in np.unique(fold):
            mine = labels.take(fold == number)
            head = fit_head(labels.take(fold != number), prior, penalty)
            found[fold == number] = head.p(mine.classes, mine.embedding, mine.surface)
        errors.append(float((weights * (found - np.nan_to_num(labels.scores)) ** 2).sum()))
    return fit_head(labels, prior, PENALTIES[int(np.argmin(errors))])


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
