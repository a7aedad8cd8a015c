"""Rows grouped by the tiers that were observed on them, so that models are compared where outcomes are known."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from classifier.outcome_model import OutcomeModel, Outcomes
from classifier.training.encoded_rows import EncodedRows
from classifier.worth import PRICES

Float = npt.NDArray[np.floating]
BATCH = 2048


@dataclass(frozen=True)
class RowSet:
    """Rows on which the same tiers were observed. `tiers`: their numbers; `scores`: label → [n, len(tiers)]."""

    name: str
    tiers: list[int]
    mask: npt.NDArray[np.bool_]
    scores: dict[str, Float]

    @property
    def prices(self) -> Float:
        return np.array([PRICES[t - 1] for t in self.tiers])

    def p_ok(self, p: Float) -> Float:
        """[n, len(tiers)] of these rows from head probabilities [all rows, >= tiers - 1]; the last column is 1."""
        weaker = p[self.mask][:, [t - 1 for t in self.tiers[:-1]]]
        return np.hstack([weaker, np.ones((len(weaker), 1))])


def row_sets(rows: EncodedRows, tiers: int, prefix: str = "") -> list[RowSet]:
    """Rows by which tiers were observed beside the strongest: the full ladder first, then subsets by size."""
    no_worse = np.hstack([rows.labels[:, : tiers - 1], np.ones((len(rows), 1), np.float32)])
    correct = rows.labels[:, tiers - 1 :]
    observed = ~np.isnan(no_worse)
    sets = []
    for pattern in sorted({tuple(o) for o in observed.tolist() if sum(o) > 1}, key=lambda o: (-sum(o), o)):
        mask = (observed == np.array(pattern)).all(axis=1)
        columns = np.flatnonzero(pattern)
        scores = {"no_worse": no_worse[mask][:, columns].astype(np.float64)}
        if not np.isnan(correct[mask][:, columns]).any():
            scores["correct"] = correct[mask][:, columns].astype(np.float64)
        numbers = [int(c) + 1 for c in columns]
        sets.append(RowSet(f"{prefix}tiers {' '.join(map(str, numbers))}", numbers, mask, scores))
    return sets


def predicted(model: OutcomeModel, rows: EncodedRows) -> Outcomes:
    """Probabilities [n, heads] and novelty [n] of encoded rows that are not in the model's memory."""
    parts = [
        model.outcomes(rows.features[i : i + BATCH], rows.embedding[i : i + BATCH], rows.word_logits[i : i + BATCH])
        for i in range(0, len(rows), BATCH)
    ]
    if not parts:
        return Outcomes(np.zeros((0, len(model.manifest.heads)), np.float32), np.zeros(0, np.float32))
    return Outcomes(np.concatenate([part.p for part in parts]), np.concatenate([part.novelty for part in parts]))


def predict_rows(model: OutcomeModel, rows: EncodedRows) -> npt.NDArray[np.float32]:
    """Head probabilities [n, heads] of rows that are not in the model's memory."""
    return predicted(model, rows).p
