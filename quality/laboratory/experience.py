"""Verified outcomes of a run, kept as the live store keeps them: vectors, labels, weights, and what each row is for."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from classifier.training.encoded_rows import EncodedRows, label_matrix
from quality.experience import kept_apart

Float = npt.NDArray[np.float32]


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

    def exported(self) -> tuple[EncodedRows, npt.NDArray[np.bool_]]:
        """All rows, and which of them are kept from all training."""
        held, compare = kept_apart(np.array(self._draws))
        rows = replace(
            self._prompts.take(np.array(self._rows, np.intp)),
            labels=label_matrix(np.array(self._labels, np.float32)),
            weights=np.array(self._weights, np.float32),
            held=held,
        )
        return rows, compare
