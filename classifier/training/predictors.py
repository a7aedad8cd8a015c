"""Whatever predicts outcomes from prompts, as the evaluation sees it: fitted on rows, asked for probabilities."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

import numpy as np
import numpy.typing as npt

from classifier.errors import TrainingDataError
from classifier.training.dataset import HEADS, OutcomeRow

Float = npt.NDArray[np.float32]


class Predictor(Protocol):
    """One row of the evaluation's tables.

    `fit` sees training rows and, for early stopping, choice of penalties and calibration, valid rows; never the rows
    it is measured on. It may be called again with other rows (domains held out, fewer labels) and then starts anew.
    """

    name: str

    def fit(self, train: Sequence[OutcomeRow], valid: Sequence[OutcomeRow]) -> None:
        """Learn from `train`; tune and calibrate on `valid`. Deterministic.

        Raises `PredictorUnavailableError` if something it needs (weights, a checkpoint) is absent.
        """

    def predict(self, rows: Sequence[OutcomeRow]) -> Float:
        """Calibrated probabilities float32 [rows, heads] in the order of `HEADS`. It may look at a row's prompt,
        not at its outcomes; NaN where it has no opinion on a head."""


class NoveltyPredictor(Predictor, Protocol):
    """A predictor that also says how far a prompt is from what it was fitted on."""

    def novelty(self, rows: Sequence[OutcomeRow]) -> Float:
        """Float32 [rows], rising with the distance to verified experience."""


class PredictorUnavailableError(TrainingDataError):
    """The predictor needs something that is not on this machine; the message names it. Its row is left out."""


@dataclass(frozen=True)
class Entry:
    """A registered predictor: its row's name, and `module:callable` that makes one without arguments.

    The module is imported when the row is asked for, so that a registration costs nothing to those who do not ask.
    `within_1_ms`: whether it fits the request path's budget for stage 1 (one core, no accelerator).
    """

    name: str
    factory: str
    within_1_ms: bool = True

    def make(self) -> Predictor:
        """A new, unfitted predictor. Raises `PredictorUnavailableError` if its packages are not installed."""
        module, attribute = self.factory.split(":")
        try:
            make: Callable[[], Predictor] = getattr(import_module(module), attribute)
        except ImportError as error:
            raise PredictorUnavailableError(f"{self.name}: {error}.") from error
        return make()


def checked(p: npt.NDArray[np.floating], rows: Sequence[OutcomeRow], name: str) -> Float:
    """`p` as float32 [rows, heads]. Raises `TrainingDataError` for another shape or values outside [0, 1]."""
    if p.shape != (len(rows), len(HEADS)):
        raise TrainingDataError(f"{name} predicted shape {p.shape}; expected {(len(rows), len(HEADS))} (rows, heads).")
    known = p[~np.isnan(p)]
    if known.size and (known.min() < 0 or known.max() > 1):
        raise TrainingDataError(f"{name} predicted {known.min():g} to {known.max():g}; probabilities lie in [0, 1].")
    return p.astype(np.float32)
