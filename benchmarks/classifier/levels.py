"""What a retraining on labels of all customers together is worth: the head over all keys against the table by class.

The labels are drawn from the customers' rows of `train` and have no tenant, as an operator imports them. Both are asked
about the rows that are not of `train`, as a caller without labels of its own is served.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from benchmarks.classifier.utility import PRIOR, Row, encoded, utility_of
from benchmarks.replay.figures import Figure
from quality.retraining.levels import learn
from quality.verification.training_rows import FOLDS


class LevelGain(NamedTuple):
    """Over draws of the labels with a head that was adopted: the mean reduction of squared error, times 100, and the
    gain in points of utility, of the head over the table, each with the range of 95% of the draws; None without any."""

    draws: int
    adopted: int
    error: Figure | None
    utility: Figure | None


def level_gain(
    customers: dict[str, list[Row]], rate: float, count: int, draws: int, *, shuffled: bool = False, seed: int = 0
) -> LevelGain:
    """Retrain `draws` times on `count` labels. `shuffled`: labels of other prompts."""
    rows = encoded(customers)
    labels = replace(rows.labels, scores=np.clip(rows.labels.scores, 0, 1))
    pool, asked = np.flatnonzero(rows.train), np.flatnonzero(~rows.train)
    unseen, found = labels.take(asked), []
    for draw in range(draws):
        rng = np.random.default_rng((seed, draw))
        known = labels.take(rng.choice(pool, min(count, len(pool)), replace=False))
        known = replace(known, tenant=np.full(len(known), -1, np.int32))
        if shuffled:
            known = replace(known, scores=rng.permutation(known.scores))
        learned = learn(known, rng.integers(0, FOLDS, len(known)), PRIOR)
        if learned.head is None:
            continue
        by_table = np.clip(unseen.classes @ learned.table, 0, 1)
        by_head = learned.head.p(unseen.classes, unseen.embedding, unseen.surface)
        errors, utilities = zip(
            *(
                (np.square(p - unseen.scores).mean(), utility_of(rows, asked, p[:, 0] < 1 - rate, rate))
                for p in (by_table, by_head)
            ),
            strict=True,
        )
        found.append((100 * float(errors[0] - errors[1]), utilities[1] - utilities[0]))
    error, utility = (_range([one[i] for one in found]) for i in range(2))
    return LevelGain(draws, len(found), error, utility)


def _range(values: list[float]) -> Figure | None:
    if not values:
        return None
    low, high = np.quantile(values, (0.025, 0.975))
    return Figure(float(np.mean(values)), float(low), float(high))
