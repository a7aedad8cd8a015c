"""What a retraining on labels of all customers together is worth: each level above the table by class against it.

The labels are drawn from the customers' rows of `train` and have no tenant, as an operator imports them. All are asked
about the rows that are not of `train`, as a caller without labels of its own is served.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.classifier.utility import PRIOR, RESAMPLES, Encoded, Row, encoded
from benchmarks.replay.figures import Figure
from classifier.local.cells import Labels
from quality.comparison.decision_gain import Serving
from quality.retraining.levels import ABOVE, fitted_level, learn, related, related_folds

Float64 = npt.NDArray[np.float64]

# What a retraining makes of its labels: the level that it adopts.
RETRAINED = "retrained"


class Gain(NamedTuple):
    """Over the table, means over draws of the labels and held-out rows: the reduction of squared error, times 100, and
    points of utility, with intervals of 95% that are bootstrapped over draws and groups of related rows."""

    error: Figure
    utility: Figure


class LevelGains(NamedTuple):
    """`adopted`: in how many of `draws` a retraining adopted each level above the table. `gains`: of these levels,
    adopted or not, and of what was `RETRAINED`; empty for shuffled labels."""

    draws: int
    adopted: Mapping[str, int]
    gains: dict[str, Gain]


def level_gains(
    customers: dict[str, list[Row]], rate: float, count: int, draws: int, *, shuffled: bool = False, seed: int = 0
) -> LevelGains:
    """Retrain `draws` times on `count` labels. `shuffled`: labels of other prompts."""
    rows, serving = encoded(customers), Serving(target=1 - rate, cost_shares=[0.0, 1.0])
    labels = replace(rows.labels, scores=np.clip(rows.labels.scores, 0, 1))
    pool, asked = np.flatnonzero(rows.train), np.flatnonzero(~rows.train)
    adopted: Counter[str] = Counter()
    drawn = []
    for draw in range(draws):
        rng = np.random.default_rng((seed, draw))
        known = labels.take(rng.choice(pool, min(count, len(pool)), replace=False))
        known = replace(known, tenant=np.full(len(known), -1, np.int32))
        if shuffled:
            known = replace(known, scores=rng.permutation(known.scores))
        fold = related_folds(known.embedding)
        learned = learn(known, fold, PRIOR, serving)
        adopted.update(level.name for level in learned.levels[1:] if level.adopted)
        if shuffled:
            continue
        unseen = labels.take(asked)
        table = np.clip(unseen.classes @ learned.table, 0, 1)
        heads = {above.name: fitted_level(above, known, fold, PRIOR) for above in ABOVE} | {RETRAINED: learned.head}
        p = {
            name: table if head is None else head.p(unseen.classes, unseen.embedding, unseen.surface)
            for name, head in heads.items()
        }
        drawn.append({name: _gains(rows, asked, unseen, table, after, rate) for name, after in p.items()})
    groups, rng = related(labels.embedding[asked]), np.random.default_rng(seed)
    names = drawn[0] if drawn else ()
    gains = {name: Gain(*_intervals(np.stack([one[name] for one in drawn]), groups, rng)) for name in names}
    return LevelGains(draws, adopted, gains)


def _gains(
    rows: Encoded, asked: npt.NDArray[np.intp], unseen: Labels, before: npt.NDArray[np.floating],
    after: npt.NDArray[np.floating], rate: float,
) -> Float64:  # fmt: skip
    """Return [2, n]: of each row of `asked`, the reduction of squared error by `after` against `before`, P(as good)
    [n, 1], and the gain in utility; times 100."""
    error = ((before - unseen.scores) ** 2 - (after - unseen.scores) ** 2)[:, 0]
    gain = rows.strong[asked] - rate - rows.weak[asked]
    chosen = (after[:, 0] < 1 - rate).astype(np.float64) - (before[:, 0] < 1 - rate)
    return 100 * np.stack([error, chosen * gain]).astype(np.float64)


def _intervals(gains: Float64, groups: npt.NDArray[np.intp], rng: np.random.Generator) -> list[Figure]:
    """Of the means of `gains` [draws, 2, n] over draws and rows, of which those of one of `groups` [n] go together."""
    draws = len(gains)
    sizes = np.bincount(groups)
    sums = np.stack([[np.bincount(groups, one) for one in both] for both in gains])
    found = np.empty((RESAMPLES, 2))
    for resample in range(RESAMPLES):
        times = rng.multinomial(draws, np.full(draws, 1 / draws)) / draws
        chosen = rng.multinomial(len(sizes), np.full(len(sizes), 1 / len(sizes)))
        found[resample] = np.einsum("d,dkg,g->k", times, sums, chosen, optimize=True) / (chosen @ sizes)
    low, high = np.quantile(found, (0.025, 0.975), axis=0)
    return [Figure(*map(float, one)) for one in zip(gains.mean(axis=(0, 2)), low, high, strict=True)]
