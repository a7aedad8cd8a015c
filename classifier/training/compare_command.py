"""What `aio classifier compare` does: two versions on the same rows of known outcomes, difference by difference."""

from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.acceptance import accepted_artefact
from classifier.batch import BatchPredictor
from classifier.errors import TrainingDataError
from classifier.prompt_file import PromptRow
from classifier.training.dataset import OutcomeRow, data_folder, load_outcomes, outcome_labels, tier_scores
from classifier.training.metrics import resamples
from classifier.training.routing import COST_WEIGHT, PRICES

RESAMPLES = 1000
Float = npt.NDArray[np.float64]


class Measure(msgspec.Struct, frozen=True, kw_only=True):
    """One measure of both versions, and B minus A with its 95% interval of a paired bootstrap over the rows."""

    name: str
    rows: int
    a: float
    b: float
    difference: float
    low: float
    high: float


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Versions A and B on `rows` rows; `other_tier`: share of all rows whose tier differs."""

    version_a: str
    version_b: str
    rows: int
    other_tier: float
    measures: list[Measure]


def compare_command(
    folder_a: Path,
    folder_b: Path,
    *,
    data: Path | None = None,
    split: str = "test",
    quality_target: float | None = None,
) -> Comparison:
    """Compare the artefacts in two folders on a split of the public outcomes, each at its own quality target or both
    at `quality_target`. Raises `ArtefactError`, and `TrainingDataError` without data or rows of that split.

    Brier scores are those of each head on the rows that observed it. Quality, cost and utility are those of the tier
    that the policy picks, on rows where every tier was observed.
    """
    rows = [row for row in load_outcomes(data or data_folder()) if row.split == split]
    if not rows:
        raise TrainingDataError(f"the data have no rows of the split {split!r}.")
    predictors = [BatchPredictor(accepted_artefact(folder), quality_target) for folder in (folder_a, folder_b)]
    return compare(predictors[0], predictors[1], rows)


def compare(a: BatchPredictor, b: BatchPredictor, rows: list[OutcomeRow]) -> Comparison:
    """The comparison of two loaded versions on `rows`."""
    scores = tier_scores(rows)
    labels = outcome_labels(scores).astype(np.float64)
    prompts = [PromptRow(row.id, row.prompt) for row in rows]
    found = [one.predict(prompts) for one in (a, b)]
    p = [np.array([[*r.p_ok[:-1], *(r.p_correct or [np.nan] * len(r.p_ok))] for r in result]) for result in found]
    picks = [np.array([r.tier - 1 for r in result]) for result in found]
    tiers = a.model.manifest.tiers
    names = [f"Brier, no_worse_{k}" for k in range(1, tiers)] + [f"Brier, correct_{k}" for k in range(1, tiers + 1)]
    measures = []
    for head, name in enumerate(names):
        seen = ~np.isnan(labels[:, head]) & ~np.isnan(p[0][:, head]) & ~np.isnan(p[1][:, head])
        if seen.any():
            each = [(one[seen, head] - labels[seen, head]) ** 2 for one in p]
            measures.append(_measure(name, each[0], each[1]))
    full = ~np.isnan(scores).any(axis=1)
    if full.any():
        measures += _of_choices(labels[full], [pick[full] for pick in picks], tiers)
    return Comparison(
        version_a=a.model.version,
        version_b=b.model.version,
        rows=len(rows),
        other_tier=round(float(np.mean(picks[0] != picks[1])), 6),
        measures=measures,
    )


def _of_choices(labels: Float, picks: list[npt.NDArray[np.intp]], tiers: int) -> list[Measure]:
    each = np.arange(len(labels))
    no_worse = np.hstack([labels[:, : tiers - 1], np.ones((len(labels), 1))])
    cost = np.array(PRICES[:tiers]) / PRICES[tiers - 1]
    worth = {
        "share no worse": no_worse,
        "share correct": labels[:, tiers - 1 :],
        "cost share": np.broadcast_to(cost, no_worse.shape),
        "utility (no worse - 0.1 cost)": no_worse - COST_WEIGHT * cost,
    }
    return [_measure(name, values[each, picks[0]], values[each, picks[1]]) for name, values in worth.items()]


def _measure(name: str, a: Float, b: Float) -> Measure:
    draws = resamples(len(a), RESAMPLES, seed=0) @ (b - a) / len(a)
    low, high = np.quantile(draws, [0.025, 0.975])
    return Measure(
        name=name,
        rows=len(a),
        a=round(float(a.mean()), 6),
        b=round(float(b.mean()), 6),
        difference=round(float((b - a).mean()), 6),
        low=round(float(low), 6),
        high=round(float(high), 6),
    )
