"""Candidates of the laboratory: the product's own training and gate, and the oracle, trained on every outcome."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from classifier.artefact import load_artefact, load_base
from classifier.errors import TrainingDataError
from classifier.manifest import TrainingWindow
from classifier.outcome_model import OutcomeModel
from classifier.training.encoded_rows import EncodedRows, label_matrix
from classifier.training.retrain import cross_fitted, retrain_from
from quality.experience import CALIBRATE_SHARE
from quality.laboratory.experience import Rows
from quality.laboratory.router import Rule
from quality.laboratory.truth import Truth
from quality.promotion import Judgement, judge_candidate


class Trainer:
    """Trains from the shipped artefact into `folder`, as the retraining job does in its process."""

    def __init__(self, shipped: Path, folder: Path, seed: int = 0) -> None:
        self._shipped, self._folder, self._seed = shipped, folder, seed
        base = EncodedRows.from_tensors(load_base(shipped))
        self._base_held = base.take(base.held)

    def candidate(self, rows: EncodedRows) -> OutcomeModel:
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
            seed=self._seed,
        )
        return load_artefact(folder)

    def judged(self, rows: Rows, incumbent: OutcomeModel, rule: Rule) -> tuple[OutcomeModel, Judgement] | None:
        """A candidate and the gate's word on it; None where nothing can be trained."""
        try:
            candidate = self.candidate(rows.encoded)
            unseen = cross_fitted(self._shipped, rows.encoded, rows.fold, base_weight=None, seed=self._seed)
        except TrainingDataError:
            return None
        judgement = judge_candidate(
            candidate,
            incumbent,
            rows.encoded.take(rows.compare),
            self._base_held,
            predicted=unseen[rows.compare],
            lambda_=rule.lambda_,
            seed=self._seed,
        )
        return candidate, judgement

    def oracle(
        self,
        prompts: EncodedRows,
        seen: list[tuple[npt.NDArray[np.int_], Truth]],
        rng: np.random.Generator,
    ) -> OutcomeModel:
        """Trained on every outcome of every tier: `seen` are how often each prompt came [n], and the truth meanwhile.

        A prompt that came many times is one row of that weight, with the mean of its outcomes.
        """
        counts = sum(count for count, _ in seen) + np.zeros(len(prompts))
        asked = counts > 0
        summed = sum(count[:, None] * np.hstack([truth.no_worse[:, :-1], truth.right]) for count, truth in seen)
        outcomes = (summed / np.maximum(counts, 1)[:, None]).astype(np.float32)
        tiers = seen[0][1].right.shape[1]
        rows = replace(
            prompts,
            labels=label_matrix(outcomes[:, : tiers - 1], outcomes[:, tiers - 1 :]),
            weights=counts.astype(np.float32),
            held=rng.random(len(prompts)) < CALIBRATE_SHARE,
        )
        return self.candidate(rows.take(asked))
