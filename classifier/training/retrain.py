"""Retraining without texts: encoded new rows join the base data, and all above the frozen encoder is refitted."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.artefact import (
    load_artefact,
    load_base,
    load_manifest,
    load_model_tensors,
    model_tensors,
    save_artefact,
)
from classifier.curve import CURVE_ROWS
from classifier.errors import TrainingDataError
from classifier.manifest import TrainingWindow
from classifier.outcome_model import OutcomeModel
from classifier.training.changes import Changes, of_rows, outdated
from classifier.training.encoded_rows import EncodedRows
from classifier.training.fit import fit_heads
from classifier.training.row_sets import predict_rows
from classifier.training.train import artefact_version, with_curves

# Of a base row, against a new one: thousands of old rows must not outvote a hundred that show what has changed.
BASE_WEIGHT = 0.1


def retrain_from(
    base: Path,
    new_rows: EncodedRows,
    root: Path,
    *,
    catalogue_fingerprint: str,
    models: dict[str, list[str | None]],
    window: TrainingWindow,
    base_weight: float | None = 1.0,
    changes: Changes | None = None,
    seed: int = 0,
) -> Path:
    """A candidate `root/<version>/` from the artefact in `base` and `new_rows` (by `encode_rows` with its encoder).

    The encoder stays as it is, byte for byte. A base row has `base_weight`; None is a tenth, and more as new rows come
    near the base in number, so that they do not outweigh it. The candidate says it was measured on
    `catalogue_fingerprint`, whose `models` are those that produced the new rows. Outcomes from before `changes` are
    outdated, as `fit_heads` says. Nothing is promoted.
    Raises `TrainingDataError` without new rows, or when they come from another encoder.
    """
    parent = load_manifest(base)
    if not len(new_rows):
        raise TrainingDataError("no new rows; retraining needs some verified outcomes.")
    rows = _all_rows(base, new_rows, base_weight)
    before = outdated(rows.labels.shape, changes or {})
    heads, memory = fit_heads(rows, seed=seed, recent=len(new_rows), outdated=before)
    tensors = model_tensors(load_model_tensors(base), heads, memory)
    manifest = msgspec.structs.replace(
        parent,
        version=artefact_version(tensors, rows.tensors()),
        parent=parent.version,
        catalogue_fingerprint=catalogue_fingerprint,
        models=models,
        training_window=window,
        counts={
            "train": int((~rows.held).sum()),
            "valid": int(rows.held.sum()),
            "new": len(new_rows),
        },
        seed=seed,
        metrics={},
    )
    return save_artefact(
        root, with_curves(manifest, tensors, _curve_rows(rows, len(new_rows))), tensors, rows.tensors()
    )


def cross_fitted(
    base: Path,
    new_rows: EncodedRows,
    fold: npt.NDArray[np.integer],
    *,
    base_weight: float | None = 1.0,
    changes: Changes | None = None,
    seed: int = 0,
) -> npt.NDArray[np.float32]:
    """What is predicted for each new row [n, heads] by a candidate that was trained on all but its `fold` [n].

    So every row can be compared on, and every row can train; each candidate is `retrain_from`'s but for the rounding
    of storage. Raises `TrainingDataError` for rows of another encoder.
    """
    parent = load_artefact(base)
    predicted = np.full(new_rows.labels.shape, np.nan, np.float32)
    for number in np.unique(fold):
        mine = fold == number
        rows, count = _all_rows(base, new_rows.take(~mine), base_weight), int((~mine).sum())
        before = outdated(rows.labels.shape, of_rows(changes or {}, ~mine))
        heads, memory = fit_heads(rows, seed=seed, recent=count, outdated=before)
        model = OutcomeModel(parent.manifest, parent.encoder, heads, memory)
        predicted[mine] = predict_rows(model, new_rows.take(mine))
    return predicted


def _all_rows(base: Path, new_rows: EncodedRows, base_weight: float | None) -> EncodedRows:
    """The base rows of the artefact, then the new ones."""
    old = EncodedRows.from_tensors(load_base(base))
    if new_rows.embedding.shape[1:] != old.embedding.shape[1:] or new_rows.labels.shape[1:] != old.labels.shape[1:]:
        raise TrainingDataError(
            f"new rows have embeddings {new_rows.embedding.shape} and labels {new_rows.labels.shape}, the base has "
            f"{old.embedding.shape} and {old.labels.shape}; encode them with the encoder of "
            f"{load_manifest(base).version}."
        )
    share = float(new_rows.weights.sum() / max(float(old.weights.sum()), 1e-9))
    weight = min(1.0, max(BASE_WEIGHT, share)) if base_weight is None else base_weight
    return replace(old, weights=old.weights * np.float32(weight)).joined(new_rows)


def _curve_rows(rows: EncodedRows, new: int) -> EncodedRows:
    """The probes of the serving catalogue that trained nothing if there are enough of them, else the base's held rows:
    routed traffic never shows what the other tiers would have done (DESIGN §5)."""
    old, tiers = np.arange(len(rows)) < len(rows) - new, (rows.labels.shape[1] + 1) // 2
    probes = rows.held & ~old & ~np.isnan(rows.labels[:, : tiers - 1]).any(axis=1)
    return rows.take(probes if np.count_nonzero(probes) >= CURVE_ROWS else rows.held & old)
