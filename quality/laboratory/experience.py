"""Verified outcomes of a run, kept as the live store keeps them: vectors, labels, weights, and what each row is for."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from classifier.training.encoded_rows import EncodedRows, label_matrix
from quality.experience import folds, held
from quality.laboratory.verdicts import Verdict
from quality.training import NewRows

Float = npt.NDArray[np.float32]


class Experience:
    """Rows in the order of their verification."""

    def __init__(self, prompts: EncodedRows) -> None:
        self._prompts = prompts
        self._rows: list[int] = []
        self._labels: list[Float] = []
        self._weights: list[float] = []
        self._draws: list[float] = []
        self._requests: list[int] = []
        self._probes: list[bool] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, request: int, prompt: int, verdict: Verdict, weight: float, draw: float) -> None:
        """Keep an outcome; `draw` in [0, 1) decides, as the hash of the request does, what the row is for."""
        self._requests.append(request)
        self._rows.append(prompt)
        self._labels.append(verdict.no_worse)
        self._probes.append(verdict.purpose == "probe")
        self._weights.append(weight)
        self._draws.append(draw)

    def exported(self, since: int, changed: Mapping[int, float]) -> NewRows:
        """All rows as the training job reads them; `since`: the first that the version in force was not trained on;
        `changed`: by tier, the request from which on its answers are others."""
        draws = np.array(self._draws)
        rows = replace(
            self._prompts.take(np.array(self._rows, np.intp)),
            labels=label_matrix(np.array(self._labels, np.float32)),
            weights=np.array(self._weights, np.float32),
            held=held(draws, np.array(self._probes)),
        )
        asked = np.array(self._requests)
        changes = {tier: asked < request for tier, request in changed.items()}
        return NewRows(rows, folds(draws), np.arange(len(rows)) >= since, changes)
