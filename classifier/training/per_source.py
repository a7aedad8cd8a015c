"""Models fitted apart for each collection of outcomes: the collections' models differ, only their prompts are alike."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from classifier.training.dataset import HEADS, TIER_MODELS, OutcomeRow, outcome_labels, tier_scores

Float64 = npt.NDArray[np.float64]
# Prompts of a collection that trained nothing are given to the largest one's models.
FALLBACK = next(iter(TIER_MODELS))


def family(row: OutcomeRow) -> str:
    """The collection of a row: the prefix of its source that `TIER_MODELS` knows, else the source itself."""
    return next((prefix for prefix in TIER_MODELS if row.source.startswith(prefix)), row.source)


def families(rows: Sequence[OutcomeRow]) -> dict[str, npt.NDArray[np.intp]]:
    """Family → indices of its rows, in order of first appearance."""
    names = np.array([family(row) for row in rows], dtype=np.str_)
    return {name: np.flatnonzero(names == name) for name in dict.fromkeys(names.tolist())}


def labels_of(rows: Sequence[OutcomeRow]) -> Float64:
    """Labels [n, heads] as `outcome_labels` gives them."""
    return outcome_labels(tier_scores(list(rows))).astype(np.float64)


def observed_heads(labels: Float64) -> Iterator[int]:
    """Heads with outcomes of both kinds among these labels [n, heads]."""
    for head in range(len(HEADS)):
        seen = labels[~np.isnan(labels[:, head]), head]
        if seen.size and seen.min() < seen.max():
            yield head
