"""Erasure of a user's rows from artefacts: versions that contain them are replaced by versions that do not.

An artefact contains embeddings, never texts or names. Their owner is identified by digests of an erased user's
embeddings, which the store keeps for a while.
"""

import hashlib
import shutil
from collections.abc import Collection
from contextlib import suppress

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.encoders.static_encoder import dequantise, quantise
from classifier.model.knn_memory import Memory
from classifier.model.outcome_model import Manifest
from classifier.registry.artefact import Tensors, load_base, load_manifest, load_model_tensors, save_artefact
from classifier.registry.registry import ArtefactRegistry


def embedding_digest(embedding: npt.NDArray[np.float32]) -> str:
    """Return the SHA-256 of one embedding [d], rounded as artefacts store it."""
    return _digests(quantise(embedding[None, :])[0])[0]


def versions_without(registry: ArtefactRegistry, digests: Collection[str]) -> dict[str, str]:
    """Replace every version that contains some of these rows by one without them; return the new names by the old.

    The new version is otherwise the same: its heads hold no row, were fitted with the rows, and the next retraining
    fits them without. If no other new row is left, the lineage's root artefact replaces the version. The pointer is
    unchanged; delete the old versions by `forget`. Raises `ArtefactError` for a version that cannot be read.
    """
    wanted = frozenset(digests)
    replaced: dict[str, str] = {}
    for version in registry.versions() if wanted else []:
        if (new := _without(registry, version, wanted)) is not None:
            replaced[version] = new
    return replaced


def forget(registry: ArtefactRegistry, versions: Collection[str]) -> None:
    """Delete versions that the pointer no longer names."""
    for version in versions:
        with suppress(FileNotFoundError):  # another process was first
            shutil.rmtree(registry.root / version)


def _without(registry: ArtefactRegistry, version: str, digests: frozenset[str]) -> str | None:
    """Return the name of a version like `version` without these rows, made if needed; None if it has none of them."""
    folder = registry.folder(version)
    manifest = load_manifest(folder)
    if manifest.parent is None:
        # Its base data ship with the program.
        return None
    base, model = load_base(folder), load_model_tensors(folder)
    kept, remembered = _kept(base["embedding"], digests), _kept(model["memory.vectors"], digests)
    if kept.all() and remembered.all():
        return None
    own = len(kept) - manifest.counts.get("new", 0)
    kept[:own] = True
    if not kept[own:].any() or not remembered.any():
        return _root_of(registry, manifest)
    base = {name: tensor[kept] for name, tensor in base.items()}
    model = _forgotten(model, remembered)
    held = base["held"].astype(np.bool_)
    manifest = msgspec.structs.replace(
        manifest,
        version=_version(manifest.version, kept, remembered),
        counts=manifest.counts | {"train": int((~held).sum()), "valid": int(held.sum()), "new": int(kept[own:].sum())},
        metrics=manifest.metrics | {"rows_erased": int((~kept).sum())},
    )
    return save_artefact(registry.root, manifest, model, base).name


def _forgotten(model: Tensors, remembered: npt.NDArray[np.bool_]) -> Tensors:
    """Return `model` with fewer rows in its memory, and the distances between the remaining ones."""
    rows = {
        name: model[name][remembered] for name in ("memory.vectors", "memory.scale", "memory.labels", "memory.weights")
    }
    memory = Memory.build(
        dequantise(rows["memory.vectors"].astype(np.int8), rows["memory.scale"].astype(np.float32)),
        rows["memory.labels"].astype(np.float32),
        rows["memory.weights"].astype(np.float32),
        model["memory.base_rates"].astype(np.float32),
    )
    return {**model, **rows, "memory.distances": memory.distances}


def _root_of(registry: ArtefactRegistry, manifest: Manifest) -> str:
    while manifest.parent is not None:
        manifest = load_manifest(registry.folder(manifest.parent))
    return manifest.version


def _version(version: str, *kept: npt.NDArray[np.bool_]) -> str:
    digest = hashlib.sha256(b"".join([version.encode(), *(mask.tobytes() for mask in kept)]))
    return f"{version.partition('-')[0]}-{digest.hexdigest()[:12]}"


def _kept(values: npt.NDArray[np.generic], digests: frozenset[str]) -> npt.NDArray[np.bool_]:
    return np.array([digest not in digests for digest in _digests(values.astype(np.int8))], np.bool_)


def _digests(values: npt.NDArray[np.int8]) -> list[str]:
    return [hashlib.sha256(row.tobytes()).hexdigest() for row in values]
