"""The shipped kind of model as a `Predictor`: a loaded artefact, or its recipe fitted anew on other rows."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.errors import TrainingDataError
from classifier.outcome_model import OutcomeModel, Outcomes
from classifier.routing_input import routing_input_of_text
from classifier.training.dataset import HEADS, OutcomeRow
from classifier.training.encoded_rows import EncodedRows, encode_rows
from classifier.training.predictors import checked
from classifier.training.registered import SHIPPED
from classifier.training.row_sets import predicted
from classifier.training.train import hidden_states
from classifier.training.train import train as train_artefact

Float = npt.NDArray[np.float32]


class ArtefactPredictor:
    """Predictions of a loaded artefact. It was fitted before; `fit` leaves it as it is."""

    name = SHIPPED

    def __init__(self, model: OutcomeModel) -> None:
        """Raises `TrainingDataError` if the artefact has other heads than the public outcomes."""
        if model.manifest.heads != HEADS:
            raise TrainingDataError(f"artefact {model.version} predicts {model.manifest.heads}; expected {HEADS}.")
        self.model = model
        self._known: dict[int, Outcomes] = {}

    def fit(self, train: Sequence[OutcomeRow], valid: Sequence[OutcomeRow]) -> None:
        """Nothing to learn."""

    def predict(self, rows: Sequence[OutcomeRow]) -> Float:
        return checked(self._outcomes(rows).p, rows, self.name)

    def novelty(self, rows: Sequence[OutcomeRow]) -> Float:
        """Share of remembered prompts that lie closer to their own neighbours, [rows]."""
        return self._outcomes(rows).novelty

    def encoded(self, rows: Sequence[OutcomeRow], labels: Float) -> EncodedRows:
        """The rows as the artefact's encoder sees them."""
        return encode_rows(self.model.encoder, [routing_input_of_text(row.prompt) for row in rows], labels)

    def _outcomes(self, rows: Sequence[OutcomeRow]) -> Outcomes:
        key = hash(tuple(row.id for row in rows))
        if key not in self._known:
            encoded = self.encoded(rows, np.full((len(rows), len(HEADS)), np.nan, np.float32))
            self._known[key] = predicted(self.model, encoded)
        return self._known[key]


class RecipePredictor:
    """`aio classifier train`'s recipe on the given rows, in a folder of its own that is then removed."""

    name = SHIPPED

    def __init__(self, seed: int = 0, teacher: str = "") -> None:
        """`teacher` as for `train_command`."""
        self._seed, self._teacher = seed, teacher

    def fit(self, train: Sequence[OutcomeRow], valid: Sequence[OutcomeRow]) -> None:
        # Training reports on a test split; what is measured here is measured by the caller, so valid stands in.
        rows = [
            *(msgspec.structs.replace(row, split="train") for row in train),
            *(msgspec.structs.replace(row, split=split) for split in ("valid", "test") for row in valid),
        ]
        with tempfile.TemporaryDirectory(prefix="aio-recipe-") as folder:
            self.fitted = ArtefactPredictor(self._train(rows, Path(folder)))

    def _train(self, rows: Sequence[OutcomeRow], folder: Path) -> OutcomeModel:
        return train_artefact(rows, folder, teacher=hidden_states(self._teacher), seed=self._seed).model

    def predict(self, rows: Sequence[OutcomeRow]) -> Float:
        return self.fitted.predict(rows)

    def novelty(self, rows: Sequence[OutcomeRow]) -> Float:
        return self.fitted.novelty(rows)
