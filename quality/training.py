"""What the training process does: rows from their file, a candidate from base data and rows, a judgement on it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

from classifier.artefact import load_artefact, load_base
from classifier.complexity.cold_start import decides_by_class
from classifier.manifest import TrainingWindow
from classifier.outcome_model import OutcomeModel
from classifier.training.changes import Changes, of_rows, up_to_date
from classifier.training.encoded_rows import EncodedRows, label_matrix
from classifier.training.retrain import cross_fitted, retrain_from
from classifier.worth import COST_WEIGHT
from quality.class_training import trained_by_class
from quality.experience import TRAINED_ON
from quality.promotion import Judgement, judge_candidate
from quality.training_order import Order

Progress = Callable[[str, float], None]


class Trained(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate in the registry and the judgement on it."""

    version: str
    path: str
    judgement: Judgement


class NewRows(NamedTuple):
    """Verified outcomes: `encoded` [n], their `fold` [n], which of them the incumbent was not trained on (`compare`
    [n]), and which are from before a tier's answers changed."""

    encoded: EncodedRows
    fold: npt.NDArray[np.uint8]
    compare: npt.NDArray[np.bool_]
    changes: Changes


def carry_out(order: Order, rows_file: Path, progress: Progress) -> Trained:
    """Train and judge. Raises `TrainingDataError` or `ArtefactError` for rows or artefacts that do not fit."""
    progress("reading the rows", 0.0)
    tensors = load_file(rows_file)
    rows = NewRows(
        encoded_rows(tensors),
        tensors["fold"],
        tensors["compare"].astype(np.bool_),
        {tier: tensors["at"] < since for tier, since in order.changes.items()},
    )
    incumbent = load_artefact(Path(order.incumbent), order.catalogue_fingerprint)
    if order.prior and decides_by_class(incumbent):
        progress("training by class", 0.1)
        folder, judgement = trained_by_class(order, tensors, rows.encoded, incumbent)
        return Trained(version=folder.name, path=str(folder), judgement=judgement)
    progress("training", 0.1)
    root = Path(order.root_artefact)
    folder = retrain_from(
        root,
        rows.encoded,
        Path(order.registry),
        catalogue_fingerprint=order.catalogue_fingerprint,
        models=order.models,
        window=TrainingWindow(start=order.window_start, end=order.window_end, source=TRAINED_ON),
        base_weight=order.base_weight,
        changes=rows.changes,
        seed=order.seed,
    )
    progress("comparing with the incumbent", 0.4)
    candidate = load_artefact(folder, order.catalogue_fingerprint)
    judgement = judged(candidate, incumbent, root, rows, base_weight=order.base_weight, seed=order.seed)
    return Trained(version=candidate.version, path=str(folder), judgement=judgement)


def judged(
    candidate: OutcomeModel,
    incumbent: OutcomeModel,
    root: Path,
    rows: NewRows,
    *,
    base_weight: float | None,
    lambda_: float = COST_WEIGHT,
    seed: int = 0,
) -> Judgement:
    """The gate's word on a candidate from the base data in `root` and all `rows`: on newer rows by what is predicted
    for each without its fold, and on outcomes that still hold only."""
    unseen = cross_fitted(root, rows.encoded, rows.fold, base_weight=base_weight, changes=rows.changes, seed=seed)
    base = EncodedRows.from_tensors(load_base(root))
    judgement = judge_candidate(
        candidate,
        incumbent,
        up_to_date(rows.encoded, rows.changes).take(rows.compare),
        up_to_date(base.take(base.held), of_rows(rows.changes, np.zeros(0, np.intp))),
        predicted=unseen[rows.compare],
        lambda_=lambda_,
        seed=seed,
    )
    return msgspec.structs.replace(judgement, outdated={tier: int(old.sum()) for tier, old in rows.changes.items()})


def encoded_rows(tensors: dict[str, npt.NDArray[Any]]) -> EncodedRows:
    """Exported rows (`quality.experience.export_rows`) as the classifier's training rows, one cluster of their own."""
    return EncodedRows(
        features=tensors["features"],
        embedding=tensors["embedding"],
        word_logits=tensors["word_logits"],
        labels=label_matrix(tensors["no_worse"], tensors["correct"]),
        weights=tensors["weights"],
        group=np.full(len(tensors["weights"]), -1, np.int32),
        held=tensors["held"].astype(np.bool_),
    )
