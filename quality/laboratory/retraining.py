"""Candidates of the laboratory: the product's own training and gate, and the oracle, trained on every outcome."""

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path

import numpy as np
import numpy.typing as npt

from classifier.artefact import load_artefact
from classifier.errors import TrainingDataError
from classifier.manifest import TrainingWindow
from classifier.outcome_model import OutcomeModel
from classifier.training.changes import Changes
from classifier.training.encoded_rows import EncodedRows, label_matrix
from classifier.training.retrain import retrain_from
from quality.experience import CALIBRATE_SHARE
from quality.laboratory.router import Rule
from quality.laboratory.truth import Truth
from quality.promotion import Judgement
from quality.training import NewRows, judged


class Trainer:
    """Trains from the shipped artefact into `folder`, as the retraining job does in its process."""

    def __init__(self, shipped: Path, folder: Path, seed: int = 0) -> None:
        self._shipped, self._folder, self._seed = shipped, folder, seed

    def candidate(self, rows: EncodedRows, changes: Changes | None = None) -> OutcomeModel:
        """The model that base data and `rows` give. Raises `TrainingDataError`."""
        window = TrainingWindow(start=None, end=None, source="laboratory")
        folder = retrain_from(
            self._shipped,
            rows,
            self._folder,
            catalogue_fingerprint="",
            models={},
            window=window,
            base_weight=None,
            changes=changes,
            seed=self._seed,
        )
        return load_artefact(folder)

    def judged(self, rows: NewRows, incumbent: OutcomeModel, rule: Rule) -> tuple[OutcomeModel, Judgement] | None:
        """A candidate and the gate's word on it; None where nothing can be trained."""
        try:
            candidate = self.candidate(rows.encoded, rows.changes)
            judgement = judged(
                candidate, incumbent, self._shipped, rows, base_weight=None, lambda_=rule.lambda_, seed=self._seed
            )
        except TrainingDataError:
            return None
        return candidate, judgement

    def oracle(
        self,
        prompts: EncodedRows,
        seen: Sequence[tuple[npt.NDArray[np.bool_], Truth]],
        rng: np.random.Generator,
    ) -> OutcomeModel:
        """Trained on every outcome of every tier, knowing which tier changed: `seen` are the prompts that came [n] in
        each period, and the truth meanwhile.

        A prompt that came often is one row: its outcomes are the same each time, and so no further evidence.
        """
        held, now = rng.random(len(prompts)) < CALIBRATE_SHARE, seen[-1][1]
        parts = [
            replace(
                prompts,
                labels=label_matrix(truth.no_worse[:, :-1].astype(np.float32), truth.right.astype(np.float32)),
                weights=np.ones(len(prompts), np.float32),
                held=held,
            ).take(asked)
            for asked, truth in seen
        ]
        past = [(truth, int(asked.sum())) for asked, truth in seen]
        changes = {
            tier: np.concatenate([np.full(rows, self._differ(truth, now, tier)) for truth, rows in past])
            for tier in range(1, now.right.shape[1])
            if any(self._differ(truth, now, tier) for truth, _ in past)
        }
        return self.candidate(reduce(EncodedRows.joined, parts), changes)

    @staticmethod
    def _differ(one: Truth, other: Truth, tier: int) -> bool:
        return not np.array_equal(one.right[:, tier - 1], other.right[:, tier - 1])
