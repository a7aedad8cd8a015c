"""What the training process does: rows from their file, a candidate from base data and rows, a judgement on it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

from classifier.artefact import load_artefact, load_base
from classifier.manifest import TrainingWindow
from classifier.training.encoded_rows import EncodedRows, label_matrix
from classifier.training.retrain import retrain_from
from quality.experience import TRAINED_ON
from quality.promotion import Judgement, judge_candidate
from quality.training_order import Order

Progress = Callable[[str, float], None]


class Trained(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate in the registry and the judgement on it."""

    version: str
    path: str
    judgement: Judgement


def carry_out(order: Order, rows_file: Path, progress: Progress) -> Trained:
    """Train and judge. Raises `TrainingDataError` or `ArtefactError` for rows or artefacts that do not fit."""
    progress("reading the rows", 0.0)
    tensors = load_file(rows_file)
    rows, compare = encoded_rows(tensors), tensors["compare"].astype(np.bool_)
    incumbent = load_artefact(Path(order.incumbent), order.catalogue_fingerprint)
    progress("training", 0.1)
    folder = retrain_from(
        Path(order.root_artefact),
        rows.take(~compare),
        Path(order.registry),
        catalogue_fingerprint=order.catalogue_fingerprint,
        models=order.models,
        window=TrainingWindow(start=order.window_start, end=order.window_end, source=TRAINED_ON),
        base_weight=order.base_weight,
        seed=order.seed,
    )
    progress("comparing with the incumbent", 0.7)
    candidate = load_artefact(folder, order.catalogue_fingerprint)
    base = EncodedRows.from_tensors(load_base(Path(order.root_artefact)))
    judgement = judge_candidate(candidate, incumbent, rows.take(compare), base.take(base.held), seed=order.seed)
    return Trained(version=candidate.version, path=str(folder), judgement=judgement)


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
