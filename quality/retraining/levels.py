"""What stored labels support, in levels: the table by class, a head over all keys, and the class model refitted.

The table is the candidate that the promotion gate judges. A level above it learns from prompts, so it replaces the
table only if the labels are shown to depend on them (`quality.comparison.association`). That is enough for the head.
The class model must also be certainly better than the head in nested cross-validation, by the utility of its decisions
or by its squared error (`quality.comparison.decision_gain`), and certainly worse by neither; its penalty is chosen
within each outer fold. Levels are compared as a caller without labels of its own has them, and no tenant has more than
a fifth of the least labels' weight in the comparison.

Folds keep related prompts together, so that a label is predicted without those of prompts like it. Stored rows have no
text. What stands for it is the embedding: equal texts have equal ones, and numbers and names that are not in the
encoder's vocabulary change them little. Prompts within a cosine of `ALIKE` are related, and so are chains of them,
whatever their system prompts. A group of more than a fold's share is a template that future prompts share: only equal
ones of it stay together, and if these are still so many, none."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from classifier.local.cells import N0_CATALOGUE, Labels
from classifier.local.estimator import learned_table
from classifier.model.learned import CatalogueHead, LearnedHead
from classifier.model.outcome_model import Level
from classifier.training.fitting.class_refit import fit_classes, fit_head, tenant_shares
from quality.comparison.association import SLOPE
from quality.comparison.decision_gain import Compared, Serving, different_groups, mean_gain, utility_gains

Float = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.intp]

# In cross-validation each label is predicted from those of the other folds.
FOLDS = 4
# Cosines of related prompts, the least first. Of recorded pairs of prompts that are equal but for their numbers, chains
# of 0.999 join 65%, and about as many other pairs of one task. At 0.9 folds are of whole tasks, and no repetition.
ALIKE = (0.999, 0.9999)
_BLOCK = 512


def related_folds(embedding: Float) -> npt.NDArray[np.uint8]:
    """Return the fold [n] of each prompt by its `embedding` [n, d]: related prompts share one, and the folds are as
    even as that allows. Deterministic."""
    groups = related(embedding)
    sizes = np.bincount(groups, minlength=1)
    folds, held = np.zeros(len(sizes), np.uint8), np.zeros(FOLDS, np.intp)
    for group in np.argsort(-sizes, kind="stable"):
        folds[group] = np.argmin(held)
        held[folds[group]] += sizes[group]
    return folds[groups]


def related(embedding: Float) -> Numbers:
    """Return the number [n] of each prompt's group, from 0 on in the order of the prompts."""
    length = np.linalg.norm(embedding, axis=1, keepdims=True)
    groups = _groups(embedding / np.maximum(length, np.float32(1e-9)), ALIKE, len(embedding) // FOLDS)
    _, first, numbers = np.unique(groups, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[numbers]


def _groups(unit: Float, alike: Sequence[float], most: int) -> Numbers:
    """Return the group [n] of each row, by the index of one of its rows; of more than `most` rows they are those of the
    next of `alike`."""
    if not alike:
        return np.arange(len(unit))
    group = _chained(unit, alike[0])
    for number in np.flatnonzero(np.bincount(group, minlength=1) > most):
        rows = np.flatnonzero(group == number)
        group[rows] = rows[_groups(unit[rows], alike[1:], most)]
    return group


def _chained(unit: Float, least: float) -> Numbers:
    """Return the least index [n] of the rows that each is joined to, by chains of cosines of at least `least`."""
    group = np.arange(len(unit))
    for start in range(0, len(unit), _BLOCK):
        near = unit[start : start + _BLOCK] @ unit[start:].T >= least
        for row in near:
            joined = np.unique(group[start:][row])
            if len(joined) > 1:
                group[np.isin(group, joined)] = joined[0]
    return group


Folds = npt.NDArray[np.integer]

# Levels above the table are tried from this many labels on.
LEAST_FOR_HEAD, LEAST_FOR_CLASSES = 200, 300
MOST_OF_TENANT = LEAST_FOR_HEAD // 5
NO_HEADS: Mapping[int, LearnedHead] = MappingProxyType({})


class Above(NamedTuple):
    """A level above the table: tried from `least` labels on, fitted on labels over a prior with one of `penalties` of
    squared weights, in labels."""

    name: str
    least: int
    fit: Callable[[Labels, Float, float], LearnedHead]
    penalties: tuple[float, ...]
    must_win: bool
    """Whether it must be certainly better than the level below in cross-validation."""


def fit_over_rates(labels: Labels, prior: Float, penalty: float) -> CatalogueHead:
    """Fit a head over `over_rates`, so that it learns how prompts differ, and not how often a tier is good. No tenant's
    label moves that table, so one tenant moves the head by no more than its bound."""
    return fit_head(labels, over_rates(labels, prior), penalty)


def over_rates(labels: Labels, prior: Float) -> Float:
    """Return `prior` [4, tiers - 1] moved to the rates of the labels without a tenant, whose weight has no bound: its
    differences between classes shrink to the share `SLOPE`. The fewer the labels, the less it moves."""
    told = labels.told * ((labels.tenant < 0) & ~labels.private)[:, None]
    count = told.sum(axis=0)
    at_least = np.maximum(count, 1e-9)
    rate, expected = (
        (told * values).sum(axis=0) / at_least for values in (np.nan_to_num(labels.scores), labels.classes @ prior)
    )
    moved = prior + count / (count + N0_CATALOGUE) * (rate + SLOPE * (prior - expected) - prior)
    table: Float = np.clip(moved, 0.0, 1.0).astype(np.float32)
    return table


ABOVE = (
    Above("head", LEAST_FOR_HEAD, fit_over_rates, (8.0,), must_win=False),
    Above("classes", LEAST_FOR_CLASSES, fit_classes, (0.5, 4.0, 32.0), must_win=True),
)


class Learned(NamedTuple):
    """What retraining learned."""

    table: Float
    """[4, tiers - 1]."""
    head: LearnedHead | None
    """What the adopted level above the table learned; None if none was adopted."""
    heads: Mapping[int, LearnedHead]
    levels: list[Level]


def learn(labels: Labels, fold: Folds, prior: Float, serving: Serving, *, by_prompt: bool = True) -> Learned:
    """Learn what `labels` with their outer `fold` [n] support, over `prior` [4, tiers - 1], for a catalogue that serves
    as `serving` says. `by_prompt`: whether labels depend on their prompts; if not, only the table is learned."""
    tables = {int(number): learned_table(labels.take(fold != number), prior) for number in np.unique(fold)}
    by_table, by_prior = np.zeros_like(labels.scores), np.clip(labels.classes @ prior, 0.0, 1.0)
    for number, table in tables.items():
        by_table[fold == number] = np.clip(labels.classes[fold == number] @ table, 0.0, 1.0)
    groups = related(labels.embedding)
    told_rows = int((labels.told > 0).any(axis=1).sum())
    levels = [_compared(None, labels, by_prior, by_table, groups, serving)]
    below, adopted, heads_of_folds = by_table, None, NO_HEADS
    for above in ABOVE if by_prompt else ():
        if told_rows < above.least or len(tables) < 3:
            break
        heads = {
            number: fitted_level(above, labels.take(fold != number), fold[fold != number], prior) for number in tables
        }
        predicted = np.zeros_like(labels.scores)
        for number, head in heads.items():
            predicted[fold == number] = _p(head, labels.take(fold == number))
        level = _compared(above, labels, below, predicted, groups, serving)
        levels.append(level)
        if level.adopted:
            below, adopted, heads_of_folds = predicted, above, heads
    learned = None if adopted is None else fitted_level(adopted, labels, fold, prior)
    return Learned(learned_table(labels, prior), learned, heads_of_folds, levels)


def fitted_level(above: Above, labels: Labels, fold: Folds, prior: Float) -> LearnedHead:
    """Return a level with the penalty that predicts best over the folds of `labels`."""
    if len(above.penalties) == 1:
        return above.fit(labels, prior, above.penalties[0])
    weights = _weights(labels)
    errors = []
    for penalty in above.penalties:
        predicted = np.zeros_like(labels.scores)
        for number in np.unique(fold):
            predicted[fold == number] = _p(
                above.fit(labels.take(fold != number), prior, penalty), labels.take(fold == number)
            )
        errors.append(float((weights * (predicted - np.nan_to_num(labels.scores)) ** 2).sum()))
    return above.fit(labels, prior, above.penalties[int(np.argmin(errors))])


def _p(head: LearnedHead, asked: Labels) -> Float:
    return head.p(asked.classes, asked.embedding, asked.surface)


def _compared(
    above: Above | None, labels: Labels, before: Float, after: Float, groups: npt.NDArray[np.intp], serving: Serving
) -> Level:
    """Return the gains of `after` over `before`, P(as good) [n, tiers - 1] out of fold, and whether it may be adopted;
    the table, which is no level above it, always is."""
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
    compared = Compared(error, utility, different_groups(gains, groups))
    return Level(
        name="table" if above is None else above.name,
        labels=int((weight > 0).sum()),
        gain=error.value,
        low=error.low,
        high=error.high,
        utility=utility.value,
        utility_low=utility.low,
        utility_high=utility.high,
        adopted=above is None or (compared.is_better or not above.must_win),
    )


def _weights(labels: Labels) -> Float:
    weights: Float = labels.told * tenant_shares(labels, MOST_OF_TENANT)
    return weights
