"""May an artefact serve? It needs intact files, finite numbers, matching models, and valid probabilities."""

from pathlib import Path

import numpy as np

from classifier.complexity.classes import Complexity
from classifier.errors import ArtefactError
from classifier.model.outcome_model import Manifest, OutcomeModel
from classifier.registry.artefact import Tensors, load_manifest, load_model_tensors, model_from_tensors


def accepted_artefact(
    folder: Path, catalogue_fingerprint: str = "", *, tiers: int | None = None, must_be_measured: bool = False
) -> OutcomeModel:
    """Return the model in `folder` after every check; this takes some milliseconds more than loading it.

    `tiers`: of the serving catalogue, if known. `must_be_measured`: refuse a version that learned nothing about the
    catalogue or has another number of tiers; otherwise it serves by its prior. Raises `ArtefactError` with the reason.
    """
    manifest = load_manifest(folder)
    tensors = load_model_tensors(folder)
    check_finite(manifest, tensors)
    check_table(manifest)
    model = model_from_tensors(manifest, tensors, catalogue_fingerprint, folder.parent)
    if must_be_measured:
        _check_measured(model, catalogue_fingerprint, tiers)
    return model


def check_table(manifest: Manifest) -> None:
    """Raise `ArtefactError` unless the learned table has a probability for each class and weaker tier."""
    table = manifest.adequacy
    if table is None:
        return
    widths = {len(row) for row in table}
    if len(table) != len(Complexity) or len(widths) != 1:
        raise _refused(manifest, f"its table by class has {len(table)} rows of {sorted(widths)} tiers")
    if not all(0.0 <= p <= 1.0 for row in table for p in row):
        raise _refused(manifest, "its table by class holds numbers outside 0 to 1")


def _check_measured(model: OutcomeModel, catalogue_fingerprint: str, tiers: int | None) -> None:
    manifest, table = model.manifest, model.adequacy
    if model.kind != "measured" or table is None:
        raise _refused(
            manifest,
            f"it learned of the models {manifest.catalogue_fingerprint!r} if of any, the catalogue's are "
            f"{catalogue_fingerprint!r}, and a prior is not wanted here",
        )
    if tiers is not None and table.shape[1] != tiers - 1:
        raise _refused(
            manifest, f"it learned of {table.shape[1] + 1} tiers, the catalogue has {tiers}, and a prior is not wanted"
        )


def check_finite(manifest: Manifest, tensors: Tensors) -> None:
    """Raise `ArtefactError` for a weight that is NaN or infinite, or a probability outside [0, 1]."""
    for name, tensor in tensors.items():
        if not np.issubdtype(tensor.dtype, np.floating):
            continue
        bad = ~np.isfinite(tensor)
        if bad.any():
            raise _refused(manifest, f"{name} holds {int(bad.sum())} numbers that are not finite")
    values = tensors.get("refitted_classes.table", np.zeros(0, np.float32)).astype(np.float32)
    if ((values < 0) | (values > 1)).any():
        raise _refused(manifest, "refitted_classes.table holds probabilities outside 0 to 1")


def _refused(manifest: Manifest, reason: str) -> ArtefactError:
    return ArtefactError(f"artefact {manifest.version} is refused: {reason}. Use another version or train one.")
