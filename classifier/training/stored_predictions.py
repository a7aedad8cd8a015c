"""Predictions kept in files: rows that take hours to compute, or come from another machine, join the same tables."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from classifier.errors import TrainingDataError
from classifier.training.dataset import HEADS, OutcomeRow
from classifier.training.predictors import Predictor, checked

Float = npt.NDArray[np.float32]


class StoredPredictions:
    """A file of `save_predictions`: float32 p [n, heads] by row id. `held`: domains that trained nothing of it.

    As a `Predictor` it is fitted already; whether `held` has the domains that it is measured on is for the caller to
    see.
    """

    def __init__(self, path: Path) -> None:
        """Raises `TrainingDataError` for a file of anything else."""
        try:
            with np.load(path, allow_pickle=False) as stored:
                self.name = str(stored["name"])
                self.held = tuple(str(domain) for domain in stored["held"])
                ids, self._p = stored["ids"], stored["p"].astype(np.float32)
        except (OSError, ValueError, KeyError) as error:
            raise TrainingDataError(f"{path} holds no predictions (name, held, ids, p as .npz): {error}.") from error
        if self._p.shape != (len(ids), len(HEADS)):
            raise TrainingDataError(f"{path}: p has shape {self._p.shape}; expected {(len(ids), len(HEADS))}.")
        self._at = {str(key): i for i, key in enumerate(ids)}

    def fit(self, train: Sequence[OutcomeRow], valid: Sequence[OutcomeRow]) -> None:
        """Nothing to learn."""

    def covers(self, rows: Sequence[OutcomeRow]) -> bool:
        """Whether it has a prediction for each of `rows`."""
        return all(row.id in self._at for row in rows)

    def predict(self, rows: Sequence[OutcomeRow]) -> Float:
        """Raises `TrainingDataError` naming a row that it has no prediction for."""
        missing = [row.id for row in rows if row.id not in self._at]
        if missing:
            raise TrainingDataError(f"{self.name} has no prediction for {len(missing)} rows, e.g. {missing[0]!r}.")
        return checked(self._p[[self._at[row.id] for row in rows]], rows, self.name)


def save_predictions(
    path: Path, name: str, rows: Sequence[OutcomeRow], p: npt.NDArray[np.floating], held: Sequence[str] = ()
) -> None:
    """Write `p` [rows, heads] of the predictor `name`; `held` are the domains that its training left out."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part.npz")
    np.savez_compressed(
        part,
        name=np.array(name),
        held=np.array(sorted(held), dtype=np.str_),
        ids=np.array([row.id for row in rows], dtype=np.str_),
        p=checked(p, rows, name),
    )
    part.replace(path)


def predictions_file(folder: Path, name: str, data_sha256: str, held: Sequence[str]) -> Path:
    """Where predictions of `name`, fitted on these data without the domains `held`, are kept in `folder`."""
    key = hashlib.sha256("\n".join([data_sha256, *sorted(held)]).encode()).hexdigest()[:12]
    words = "".join(c if c.isalnum() else "-" for c in name.lower()).strip("-")
    return folder / f"{words}.{key}.npz"


def fitted_or_stored(
    predictor: Predictor,
    train: Sequence[OutcomeRow],
    valid: Sequence[OutcomeRow],
    others: Sequence[OutcomeRow],
    path: Path | None,
    held: Sequence[str],
) -> StoredPredictions | Predictor:
    """`predictor`, fitted; or what an earlier run kept in `path`, if that covers `valid` and `others`."""
    wanted = [*valid, *others]
    if path is not None and path.is_file():
        stored = StoredPredictions(path)
        if stored.covers(wanted):
            return stored
    predictor.fit(train, valid)
    if path is not None:
        save_predictions(path, predictor.name, wanted, predictor.predict(wanted), held)
        return StoredPredictions(path)
    return predictor
