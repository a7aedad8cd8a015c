"""Train an artefact from known outcomes, encoder to manifest; the same rows give the same artefact."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from classifier.encoders.static_encoder import StoredEncoder, encoder_fingerprint
from classifier.errors import TrainingDataError
from classifier.features.routing_input import routing_input_of_text
from classifier.features.stray_text import tokenise
from classifier.features.surface_features import FEATURE_NAMES
from classifier.model.outcome_model import SCHEMA_VERSION, Manifest, OutcomeModel, TrainingWindow
from classifier.registry.artefact import Tensors, model_from_tensors, save_artefact
from classifier.training.data.dataset import PUBLIC, TIERS, OutcomeRow, data_hash, models_of
from classifier.training.fitting.static_encoder import fit_encoder

Progress = Callable[[str, float], None]

EMBEDDING_DIM = 96
MAX_TERMS = 65536


class Teacher(Protocol):
    """A larger model to distil from."""

    name: str
    """The name that goes into the manifest."""

    def __call__(self, prompts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return vectors [n, any] of these prompts, NaN for those without one."""


@dataclass(frozen=True)
class Candidate:
    """A trained artefact on disk, and the model in it."""

    folder: Path
    model: OutcomeModel


def train(
    rows: Sequence[OutcomeRow],
    root: Path,
    *,
    teacher: Teacher | None = None,
    dim: int = EMBEDDING_DIM,
    max_terms: int = MAX_TERMS,
    seed: int = 0,
    progress: Progress = lambda stage, share: None,
) -> Candidate:
    """Train on the rows of the split "train" and write `root/<version>/`.

    `teacher` gives the vectors that the encoder is distilled from; `dim` and `max_terms` set its size. Raises
    `TrainingDataError` without such rows.
    """
    prompts = [row.prompt for row in rows_of(rows, "train")]
    progress("reading the prompts", 0.0)
    tokens = [tokenise(routing_input_of_text(prompt).turn) for prompt in prompts]
    progress("fitting the encoder", 0.05)
    encoder = fit_encoder(
        tokens, teacher=teacher(prompts) if teacher else None, dim=dim, max_terms=max_terms, seed=seed
    )
    described = {"teacher": teacher.name if teacher else ""}
    return save_encoder(encoder, root, rows=rows, described=described, seed=seed, progress=progress)


def save_encoder(
    encoder: StoredEncoder,
    root: Path,
    *,
    rows: Sequence[OutcomeRow],
    described: Mapping[str, Any] | None = None,
    seed: int = 0,
    progress: Progress = lambda stage, share: None,
) -> Candidate:
    """Write the artefact `root/<version>/` with an `encoder` that was trained on `rows`, which are hashed for the
    manifest; `described` is the manifest's further description of the encoder."""
    tensors = encoder.tensors()
    manifest = first_manifest(encoder, tensors, rows, seed)
    manifest = msgspec.structs.replace(manifest, encoder={**manifest.encoder, **(described or {})})
    folder = save_artefact(root, manifest, tensors)
    progress("done", 1.0)
    return Candidate(folder, model_from_tensors(manifest, tensors, registry=root))


def rows_of(rows: Sequence[OutcomeRow], split: str) -> list[OutcomeRow]:
    """Return the rows of that split. Raises `TrainingDataError` without any."""
    members = [row for row in rows if row.split == split]
    if not members:
        raise TrainingDataError(f"no row of split {split!r} is left to train with.")
    return members


def hidden_states(model: str, progress: Progress = lambda stage, share: None) -> Teacher | None:
    """Return the teacher that is the model of that name, None for "". Raises `ModelFileError` for an unknown one."""
    if not model:
        return None
    from classifier.training.fitting.teacher import HiddenStates  # imports the inference core

    return HiddenStates(model, progress=progress)


def first_manifest(encoder: StoredEncoder, tensors: Tensors, rows: Sequence[OutcomeRow], seed: int) -> Manifest:
    """Return the manifest of a first version trained on `rows`: everything but the files."""
    models = models_of(rows)
    digest = hashlib.sha256(save(dict(sorted(tensors.items()))))
    return Manifest(
        schema_version=SCHEMA_VERSION,
        version=f"v{SCHEMA_VERSION}-{digest.hexdigest()[:12]}",
        parent=None,
        tiers=TIERS,
        feature_names=list(FEATURE_NAMES),
        encoder={**encoder.description(), "sha256": encoder_fingerprint(tensors)},
        catalogue_fingerprint="public:" + hashlib.sha256(msgspec.json.encode(models)).hexdigest()[:12],
        models=models,
        training_window=TrainingWindow(start=None, end=None, source=PUBLIC),
        counts={split: sum(row.split == split for row in rows) for split in ("train", "valid")},
        data_sha256=data_hash(list(rows)),
        seed=seed,
        files={},
    )
