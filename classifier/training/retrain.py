"""Retraining without texts: encoded new rows join the base data, and all above the frozen encoder is refitted."""

from pathlib import Path

import msgspec
import numpy as np

from classifier.artefact import (
    load_base,
    load_manifest,
    load_model_tensors,
    model_tensors,
    save_artefact,
)
from classifier.errors import TrainingDataError
from classifier.manifest import TrainingWindow
from classifier.training.encoded_rows import EncodedRows
from classifier.training.fit import fit_heads
from classifier.training.train import artefact_version, with_curves

# From so many fully observed new rows on, the curve is drawn on them alone: they are the serving catalogue's.
CURVE_ROWS = 200


def retrain_from(
    base: Path,
    new_rows: EncodedRows,
    root: Path,
    *,
    catalogue_fingerprint: str,
    models: dict[str, list[str | None]],
    window: TrainingWindow,
    base_weight: float = 1.0,
    seed: int = 0,
) -> Path:
    """A candidate `root/<version>/` from the artefact in `base` and `new_rows` (by `encode_rows` with its encoder).

    The encoder stays as it is, byte for byte. `base_weight` scales the weights of the base rows. The candidate says it
    was measured on `catalogue_fingerprint`, whose `models` are those that produced the new rows. Nothing is promoted.
    Raises `TrainingDataError` without new rows, or when they come from another encoder.
    """
    parent = load_manifest(base)
    old = EncodedRows.from_tensors(load_base(base))
    if not len(new_rows):
        raise TrainingDataError("no new rows; retraining needs some verified outcomes.")
    if new_rows.embedding.shape[1:] != old.embedding.shape[1:] or new_rows.labels.shape[1:] != old.labels.shape[1:]:
        raise TrainingDataError(
            f"new rows have embeddings {new_rows.embedding.shape} and labels {new_rows.labels.shape}, the base has "
            f"{old.embedding.shape} and {old.labels.shape}; encode them with the encoder of {parent.version}."
        )
    rows = EncodedRows(
        **{name: getattr(old, name) for name in ("features", "embedding", "word_logits", "labels", "group", "held")},
        weights=old.weights * np.float32(base_weight),
    ).joined(new_rows)
    heads, memory = fit_heads(rows, seed=seed, recent=len(new_rows))
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


def _curve_rows(rows: EncodedRows, new: int) -> EncodedRows:
    """The probes of the serving catalogue that trained nothing if there are enough of them, else the base's held rows:
    routed traffic never shows what the other tiers would have done (DESIGN §5)."""
    old, tiers = np.arange(len(rows)) < len(rows) - new, (rows.labels.shape[1] + 1) // 2
    probes = rows.held & ~old & ~np.isnan(rows.labels[:, : tiers - 1]).any(axis=1)
    return rows.take(probes if np.count_nonzero(probes) >= CURVE_ROWS else rows.held & old)
