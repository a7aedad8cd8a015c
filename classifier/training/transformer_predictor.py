"""A fine-tuned checkpoint as a row of the evaluation's tables; the checkpoint is named by the environment."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.checkpoint import model_type
from classifier.training.artefact_predictor import ArtefactPredictor
from classifier.training.dataset import OutcomeRow
from classifier.training.predictors import PredictorUnavailableError
from classifier.training.transformer_train import train_over_checkpoint
from classifier.transformer_encoder import TransformerEncoder

Float = npt.NDArray[np.float32]
VARIABLE = "AIO_ENCODER"
ROW = "fine-tuned checkpoint"


class FineTunedCheckpoint:
    """`aio classifier train --encoder`'s recipe on the given rows, in a folder of its own that is then removed."""

    def __init__(self, checkpoint: Path, seed: int = 0) -> None:
        """Raises `CheckpointError` if the folder holds no checkpoint."""
        self._checkpoint, self._seed = checkpoint, seed
        self.name = f"{ROW} ({model_type(checkpoint)})"

    def fit(self, train: Sequence[OutcomeRow], valid: Sequence[OutcomeRow]) -> None:
        # Training reports on a test split; what is measured here is measured by the caller, so valid stands in.
        rows = [
            *(msgspec.structs.replace(row, split="train") for row in train),
            *(msgspec.structs.replace(row, split=split) for split in ("valid", "test") for row in valid),
        ]
        with tempfile.TemporaryDirectory(prefix="aio-fine-tuned-") as folder:
            model = train_over_checkpoint(rows, Path(folder), self._checkpoint, seed=self._seed).model
            assert isinstance(model.encoder, TransformerEncoder)
            model.encoder.warm()
        self.fitted = ArtefactPredictor(model)

    def predict(self, rows: Sequence[OutcomeRow]) -> Float:
        return self.fitted.predict(rows)

    def novelty(self, rows: Sequence[OutcomeRow]) -> Float:
        """Share of remembered prompts that lie closer to their own neighbours, [rows]."""
        return self.fitted.novelty(rows)


def from_environment() -> FineTunedCheckpoint:
    """The checkpoint in the folder that `AIO_ENCODER` names. Raises `PredictorUnavailableError` without one."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        raise PredictorUnavailableError(
            f"{ROW}: {VARIABLE} names no checkpoint; `aio classifier pretrain` makes one, or download one."
        )
    return FineTunedCheckpoint(Path(folder))
