"""Train an artefact from known outcomes, encoder to manifest; the same rows give the same artefact."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from classifier.encoders.static_encoder import Encoder, StoredEncoder, encoder_fingerprint
from classifier.errors import TrainingDataError
from classifier.features.routing_input import RoutingInput, routing_input_of_text
from classifier.features.stray_text import tokenise
from classifier.features.surface_features import FEATURE_NAMES, surface_features
from classifier.model.outcome_model import SCHEMA_VERSION, Manifest, OutcomeModel, TrainingWindow
from classifier.registry.artefact import Tensors, model_from_tensors, model_tensors, save_artefact
from classifier.training.data.dataset import (
    HEADS,
    TIERS,
    OutcomeRow,
    data_hash,
    models_of,
    origin_of,
    outcome_labels,
    tier_scores,
)
from classifier.training.data.encoded_rows import EncodedRows, encode_rows
from classifier.training.fitting.heads import fit_heads
from classifier.training.fitting.static_encoder import FOLDS, fit_encoder
from classifier.training.fitting.trees import ROUNDS

Progress = Callable[[str, float], None]

EMBEDDING_DIM = 96
MAX_TERMS = 65536


class Teacher(Protocol):
    """A larger model to distil from. `name` goes into the manifest."""

    name: str

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
    rounds: int = ROUNDS,
    seed: int = 0,
    progress: Progress = lambda stage, share: None,
) -> Candidate:
    """Train on the rows' own splits and write `root/<version>/`.

    `teacher` gives the vectors that the encoder is distilled from; `dim`, `max_terms` and `rounds` (of boosting) set
    its size. Raises `TrainingDataError` if a split is empty.
    """
    parts, groups = rows_by_split(rows), domains_of(rows)
    progress("reading the prompts", 0.0)
    prompts = {split: [routing_input_of_text(r.prompt) for r in members] for split, members in parts.items()}
    progress("fitting the encoder", 0.05)
    labels = outcome_labels(tier_scores(parts["train"]))
    tokens = [tokenise(p.turn) for p in prompts["train"]]
    fitted = fit_encoder(
        tokens,
        np.stack([surface_features(p.turn, t, p.turn_chars) for p, t in zip(prompts["train"], tokens, strict=True)]),
        labels,
        np.array([passage_fold(r.prompt) for r in parts["train"]]),
        teacher=teacher([r.prompt for r in parts["train"]]) if teacher else None,
        dim=dim,
        max_terms=max_terms,
        rounds=rounds,
        seed=seed,
    )
    encoder = fitted.encoder
    progress("encoding", 0.5)
    encoded = {split: encode_split(encoder, members, prompts[split], groups) for split, members in parts.items()}
    # Cross-fitted encodings, like those of new prompts.
    encoded["train"] = replace(encoded["train"], embedding=fitted.embedding, word_logits=fitted.word_logits).stored()
    return train_over_encoder(
        encoder,
        encoded["train"],
        encoded["valid"],
        root,
        rows=rows,
        described={"teacher": teacher.name if teacher else ""},
        seed=seed,
        progress=progress,
    )


def train_over_encoder(
    encoder: StoredEncoder,
    fitting: EncodedRows,
    valid: EncodedRows,
    root: Path,
    *,
    rows: Sequence[OutcomeRow],
    described: Mapping[str, Any] | None = None,
    counts: Mapping[str, int] | None = None,
    seed: int = 0,
    progress: Progress = lambda stage, share: None,
) -> Candidate:
    """Write the artefact `root/<version>/` over a frozen `encoder`: heads and memory of the rows `fitting`, calibrated
    on `valid`.

    `rows` are hashed for the manifest; `described` is the manifest's further description of the encoder, and `counts`
    its further counts.
    """
    progress("fitting the heads", 0.85)
    base = fitting.joined(valid)
    heads, memory = fit_heads(base, seed=seed)
    tensors = model_tensors(encoder.tensors(), heads, memory)
    manifest = first_manifest(encoder, tensors, base, rows, seed)
    manifest = msgspec.structs.replace(
        manifest, encoder={**manifest.encoder, **(described or {})}, counts={**manifest.counts, **(counts or {})}
    )
    folder = save_artefact(root, manifest, tensors, base.tensors())
    progress("done", 1.0)
    return Candidate(folder, model_from_tensors(manifest, tensors, registry=root))


def rows_by_split(rows: Sequence[OutcomeRow]) -> dict[str, list[OutcomeRow]]:
    """Return the training and the calibration rows. Raises `TrainingDataError` if either is empty."""
    parts = {split: [row for row in rows if row.split == split] for split in ("train", "valid")}
    for split, members in parts.items():
        if not members:
            raise TrainingDataError(f"no row of split {split!r} is left to train with.")
    return parts


def domains_of(rows: Sequence[OutcomeRow]) -> list[str]:
    """Return the domains of `rows`, in the order of their numbers in encoded rows."""
    return sorted({row.domain for row in rows})


def hidden_states(model: str, progress: Progress = lambda stage, share: None) -> Teacher | None:
    """Return the teacher that is the model of that name, None for "". Raises `ModelFileError` for an unknown one."""
    if not model:
        return None
    from classifier.training.fitting.teacher import HiddenStates  # imports the inference core

    return HiddenStates(model, progress=progress)


def passage_fold(prompt: str) -> int:
    """Return the cross-fitting fold of a prompt; questions about the same passage share it."""
    return passage_digest(prompt)[0] % FOLDS


def passage_digest(prompt: str) -> bytes:
    """Return four bytes that questions about the same passage share, by their first 300 normalised characters."""
    start = " ".join(tokenise(prompt[:600]))[:300]
    return hashlib.blake2b(start.encode(), digest_size=4).digest()


def artefact_version(model: Tensors, base: Tensors) -> str:
    """Return a name derived from the content."""
    digest = hashlib.sha256(save(dict(sorted(model.items()))) + save(dict(sorted(base.items()))))
    return f"v{SCHEMA_VERSION}-{digest.hexdigest()[:12]}"


def encode_split(
    encoder: Encoder, rows: Sequence[OutcomeRow], prompts: Sequence[RoutingInput], groups: Sequence[str]
) -> EncodedRows:
    """Encode `rows`, with their labels; `groups` numbers the domains."""
    number = {name: i for i, name in enumerate(groups)}
    return encode_rows(
        encoder,
        prompts,
        outcome_labels(tier_scores(list(rows))),
        group=np.array([number[r.domain] for r in rows], np.int32),
        held=np.array([r.split != "train" for r in rows]),
    )


def first_manifest(
    encoder: StoredEncoder, tensors: Tensors, base: EncodedRows, rows: Sequence[OutcomeRow], seed: int
) -> Manifest:
    """Return the manifest of a first version trained on `rows`: everything but the files."""
    models = models_of(rows)
    observed = {f"train_{h}": int(n) for h, n in zip(HEADS, (~np.isnan(base.labels[~base.held])).sum(0), strict=True)}
    return Manifest(
        schema_version=SCHEMA_VERSION,
        version=artefact_version(tensors, base.tensors()),
        parent=None,
        tiers=TIERS,
        heads=list(HEADS),
        feature_names=list(FEATURE_NAMES),
        encoder={**encoder.description(), "sha256": encoder_fingerprint(tensors)},
        catalogue_fingerprint="public:" + hashlib.sha256(msgspec.json.encode(models)).hexdigest()[:12],
        models=models,
        training_window=TrainingWindow(start=None, end=None, source=origin_of(rows)),
        counts={"train": int((~base.held).sum()), "valid": int(base.held.sum()), **observed},
        data_sha256=data_hash(list(rows)),
        seed=seed,
        groups=domains_of(rows),
        metrics={},
        files={},
    )
