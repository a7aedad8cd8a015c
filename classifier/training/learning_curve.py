"""What more labels are worth: the same recipe fitted on ever more training rows."""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from classifier.training import metrics
from classifier.training.dataset import HEADS, OutcomeRow
from classifier.training.per_source import families
from classifier.training.predictors import Predictor
from classifier.training.routing import Estimate, estimate
from classifier.training.subsets import Outcomes, subsets

SIZES = (300, 1000, 2500, 5000)
DRAWS = 200


class LearningPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A head's figures on a test subset after fitting on `labels` training rows; the last point has all of them."""

    predictor: str
    labels: int
    subset: str
    head: str
    auc: Estimate
    auc_within: Estimate
    brier: float


def learning_curve(
    make: Callable[[], Predictor],
    train: Sequence[OutcomeRow],
    valid: Sequence[OutcomeRow],
    test: Sequence[OutcomeRow],
    *,
    seed: int = 0,
    progress: Callable[[int], None] = lambda labels: None,
) -> list[LearningPoint]:
    """Nested random subsets of `train`, each family in proportion; `correct` of each family's first tier."""
    order = np.random.default_rng(seed).permutation(len(train))
    outcomes = Outcomes.of(test)
    reported = [one for one in subsets(outcomes, draws=DRAWS) if one.name in families(test)]
    found = []
    for size in [*(size for size in SIZES if size < len(train)), len(train)]:
        progress(size)
        predictor = make()
        predictor.fit([train[i] for i in order[:size]], valid)
        p = predictor.predict(test).astype(np.float64)
        for one in reported:
            head = HEADS.index(f"correct_{one.tiers[0]}")
            y, score = one.labels[:, head], p[one.at, head]
            pooled, within = metrics.auc(y, score, None, one.weights), metrics.auc(y, score, one.domain, one.weights)
            found.append(
                LearningPoint(
                    predictor=predictor.name,
                    labels=size,
                    subset=one.name,
                    head=HEADS[head],
                    auc=estimate(float(pooled[0]), pooled[1:]),
                    auc_within=estimate(float(within[0]), within[1:]),
                    brier=round(metrics.brier(y, score), 4),
                )
            )
    return found
