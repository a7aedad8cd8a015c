"""Verified outcomes of a run, kept as the live store keeps them: vectors, labels, weights, and what each row is for."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from classifier.training.encoded_rows import EncodedRows, label_matrix
from quality.experience import CALIBRATE_SHARE

Float = npt.NDArray[np.float32]
# Each row is predicted by a candidate that was trained on the rows of the other folds.
FOLDS = 4


class Experience:
    """Rows in the order of their verification."""

    def __init__(self, prompts: EncodedRows) -> None:
        self._prompts = prompts
        self._rows: list[int] = []
        self._labels: list[Float] = []
        self._weights: list[float] = []
        self._draws: list[float] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, prompt: int, no_worse: Float, weight: float, draw: float) -> None:
        """Keep an outcome; `draw` in [0, 1) decides, as the hash of the request does, what the row is for."""
        self._rows.append(prompt)
        self._labels.append(no_worse)
        self._weights.append(weight)
        self._draws.append(draw)

    def exported(self, since: int) -> "Rows":
        """All rows as the training job reads them; `since`: the first that the version in force was not trained on."""
        draws = np.array(self._draws)
        # The fold is taken of the number's further digits, so that every fold has its share of what calibrates.
        fold = (draws * 997.0 % 1.0 * FOLDS).astype(np.uint8)
        rows = replace(
            self._prompts.take(np.array(self._rows, np.intp)),
            labels=label_matrix(np.array(self._labels, np.float32)),
            weights=np.array(self._weights, np.float32),
            held=draws < CALIBRATE_SHARE,
        )
        return Rows(rows, fold, np.arange(len(rows)) >= since)


class Rows(NamedTuple):
    """Encoded rows [n] with their folds, and which of them the version in force has not seen."""

    encoded: EncodedRows
    fold: npt.NDArray[np.uint8]
    compare: npt.NDArray[np.bool_]
