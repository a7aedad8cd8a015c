"""How predictable outcomes are at all: repeats of a prompt that disagree, and how high a ranking could come."""

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.training import metrics
from classifier.training.dataset import HEADS, TIER_MODELS, OutcomeRow
from classifier.training.per_source import families
from classifier.training.subsets import Subset

Float64 = npt.NDArray[np.float64]
DRAWS = 20


class RepeatMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Scores of a model strictly between 0 and 1 are means of repeats that disagreed; `split` of `rows` were."""

    family: str
    model: str
    rows: int
    split: int


class SharpnessCeiling(msgspec.Struct, frozen=True, kw_only=True):
    """The AUC within domain that a predictor would show on outcomes drawn from its own probabilities.

    A perfectly calibrated predictor of that spread cannot rank better: what is missing to a higher AUC are not better
    calibrated or ordered probabilities but more extreme ones, which needs information that it does not have.
    """

    subset: str
    head: str
    predictor: str
    auc: float
    auc_within: float


def repeat_metrics(rows: Sequence[OutcomeRow]) -> list[RepeatMetrics]:
    """Per family and tier's model; repeats of a prompt within a source were averaged in the data."""
    found = []
    for name, members in families(rows).items():
        for model in TIER_MODELS.get(name, []):
            scores = [rows[i].outcomes[model] for i in members if model in rows[i].outcomes]
            if model is not None and scores:
                split = sum(0 < score < 1 for score in scores)
                found.append(RepeatMetrics(family=name, model=model, rows=len(scores), split=split))
    return found


def sharpness_ceiling(one: Subset, name: str, p: Float64, seed: int = 0) -> list[SharpnessCeiling]:
    """For each head `correct_k`: mean AUC over outcomes drawn from `p` [rows of the subset, heads]."""
    rng = np.random.default_rng(seed)
    found = []
    for head in one.heads():
        score = p[:, head]
        if not HEADS[head].startswith("correct") or np.isnan(score).any():
            continue
        drawn = (rng.random((DRAWS, len(score))) < score).astype(np.float64)
        pooled = np.array([metrics.auc(y, score)[0] for y in drawn])
        within = np.array([metrics.auc(y, score, one.domain)[0] for y in drawn])
        if np.isnan(pooled).any() or np.isnan(within).any():
            continue
        found.append(
            SharpnessCeiling(
                subset=one.name,
                head=HEADS[head],
                predictor=name,
                auc=round(float(pooled.mean()), 4),
                auc_within=round(float(within.mean()), 4),
            )
        )
    return found
