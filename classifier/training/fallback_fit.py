"""The fallback that an artefact recommends for novel prompts: from which novelty on, and to which tier at least."""

import numpy as np
import numpy.typing as npt

from classifier.manifest import NoveltyFallback
from classifier.outcome_model import Outcomes
from classifier.training import metrics
from classifier.training.encoded_rows import EncodedRows
from classifier.training.routing import COST_WEIGHT, choose, utility
from classifier.training.row_sets import row_sets

# Of the held-out rows of known domains this share falls back, for nothing: what the fallback may cost.
FALSE_ALARMS = 0.05
# Fewer rows cannot show that a cheaper tier is safe.
MIN_ROWS = 50
RESAMPLES = 1000


def fitted_fallback(found: Outcomes, valid: EncodedRows, tiers: int) -> NoveltyFallback:
    """The threshold that a twentieth of the `valid` rows reach, and the safe tier there; `found` are their predictions.

    The strongest tier is safe. A cheaper one takes its place if, on the most novel rows with every tier observed,
    falling back on it is worth more, beyond chance: the lower end of the paired 95 % bootstrap interval is above 0.
    """
    threshold = float(np.quantile(found.novelty, 1 - FALSE_ALARMS, method="higher"))
    full = next((s for s in row_sets(valid, tiers) if len(s.tiers) == tiers), None)
    if full is None or len(full.scores["no_worse"]) < MIN_ROWS:
        return NoveltyFallback(threshold=round(threshold, 4), tier=tiers)
    novelty = found.novelty[full.mask]
    novel = np.argsort(-novelty, kind="stable")[: max(MIN_ROWS, int((novelty >= threshold).sum()))]
    own = choose(full.p_ok(found.p), full.prices, "lambda", COST_WEIGHT)[novel]
    worth = utility(full.scores["no_worse"], full.prices)[novel]
    return NoveltyFallback(
        threshold=round(threshold, 4), tier=_safe_tier(worth, own) if len(novel) >= MIN_ROWS else tiers
    )


def _safe_tier(worth: npt.NDArray[np.floating], own: npt.NDArray[np.intp]) -> int:
    """From the `worth` [n, tiers] of each tier and the tiers that routing chooses itself, `own` [n] from 0."""
    n, tiers = worth.shape
    rows = np.arange(n)
    each = np.stack([worth[rows, np.maximum(own, safe)] for safe in range(tiers)], axis=1)
    more = each - each[:, -1:]
    low = np.quantile(metrics.resamples(n, RESAMPLES, seed=0) @ more / n, 0.025, axis=0)
    better = np.flatnonzero(low > 0)
    return int(better[np.argmax(more[:, better].mean(axis=0))]) + 1 if len(better) else tiers
