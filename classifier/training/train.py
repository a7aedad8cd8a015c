"""Training an artefact from the public outcomes, encoder to manifest; the same rows give the same artefact."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from classifier.artefact import Tensors, model_from_tensors, model_tensors, save_artefact
from classifier.encoder import Encoder, StoredEncoder, encoder_fingerprint
from classifier.errors import TrainingDataError
from classifier.features import FEATURE_NAMES, surface_features
from classifier.heuristic import heuristic_prediction
from classifier.manifest import SCHEMA_VERSION, Curves, Manifest, TrainingWindow
from classifier.outcome_model import OutcomeModel
from classifier.routing_input import RoutingInput, routing_input_of_text
from classifier.tokens import tokenise
from classifier.training.dataset import (
    HEADS,
    TIERS,
    OutcomeRow,
    data_hash,
    models_of,
    origin_of,
    outcome_labels,
    tier_scores,
)
from classifier.training.encoded_rows import EncodedRows, encode_rows
from classifier.training.encoder_fit import FOLDS, fit_encoder
from classifier.training.evaluate import Report, evaluate, valid_curves
from classifier.training.fit import fit_heads
from classifier.training.row_sets import predicted
from classifier.training.trees_fit import ROUNDS

Progress = Callable[[str, float], None]

EMBEDDING_DIM = 96
MAX_TERMS = 65536


class Teacher(Protocol):
    """A larger model to learn from. `name` goes into the manifest."""

    name: str

    def __call__(self, prompts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Vectors [n, any] of these prompts, NaN for those that were not asked."""


@dataclass(frozen=True)
class Candidate:
    """A trained artefact on disk, the model in it, and what was measured; `unseen` are domains held out whole."""

    folder: Path
    model: OutcomeModel
    report: Report
    unseen: Report | None


def train(
    rows: Sequence[OutcomeRow],
    root: Path,
    *,
    hold: Sequence[str] = (),
    teacher: Teacher | None = None,
    dim: int = EMBEDDING_DIM,
    max_terms: int = MAX_TERMS,
    rounds: int = ROUNDS,
    ordinal: bool = False,
    seed: int = 0,
    progress: Progress = lambda stage, share: None,
) -> Candidate:
    """Train on the rows' own splits and write `root/<version>/`. Rows of domains in `hold` train nothing.

    `teacher` gives the vectors that the encoder is distilled from, `dim`, `max_terms` and `rounds` (of boosting) its
    size; `ordinal` as for `fit_heads`.
    Raises `TrainingDataError` if a split is empty or no valid row has every tier observed.
    """
    used = [r for r in rows if r.domain not in hold]
    groups = sorted({r.domain for r in rows})
    parts = {split: [r for r in used if r.split == split] for split in ("train", "valid", "test")}
    for split, members in parts.items():
        if not members:
            raise TrainingDataError(f"no row of split {split!r} is left to train with.")
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
    progress("encoding", 0.35)
    encoded = {split: encode_split(encoder, members, prompts[split], groups) for split, members in parts.items()}
    # Encoded as new prompts are: by encoders that did not see them.
    encoded["train"] = replace(encoded["train"], embedding=fitted.embedding, word_logits=fitted.word_logits).stored()
    progress("fitting the heads", 0.5)
    base = encoded["train"].joined(encoded["valid"])
    heads, memory = fit_heads(base, seed=seed, ordinal=ordinal)
    tensors = model_tensors(encoder.tensors(), heads, memory)
    manifest = first_manifest(encoder, tensors, base, groups, list(used), seed)
    taught = {**manifest.encoder, "teacher": teacher.name if teacher else ""}
    manifest = msgspec.structs.replace(manifest, encoder=taught, ordinal=ordinal)
    progress("drawing the cost-quality curve", 0.7)
    manifest = with_curves(manifest, tensors, encoded["valid"])
    model = model_from_tensors(manifest, tensors)
    progress("evaluating", 0.75)
    report = report_on(model, encoded, prompts, "test")
    unseen = None
    held_out = [r for r in rows if r.domain in hold]
    if held_out:
        prompts["unseen"] = [routing_input_of_text(r.prompt) for r in held_out]
        encoded["unseen"] = encode_split(encoder, held_out, prompts["unseen"], groups)
        unseen = report_on(model, encoded, prompts, "unseen")
    manifest = msgspec.structs.replace(manifest, metrics=msgspec.to_builtins(report))
    folder = save_artefact(root, manifest, tensors, base.tensors())
    progress("done", 1.0)
    return Candidate(folder, model_from_tensors(manifest, tensors), report, unseen)


def hidden_states(model: str, progress: Progress = lambda stage, share: None) -> Teacher | None:
    """The teacher that the model of that name is, none for "". Raises `ModelFileError` if there is no such model."""
    if not model:
        return None
    from classifier.training.teacher import HiddenStates  # imports the inference core

    return HiddenStates(model, progress=progress)


def passage_fold(prompt: str) -> int:
    """Which fold of the cross-fitting a prompt is in; questions about the same passage are in the same one."""
    return passage_digest(prompt)[0] % FOLDS


def passage_digest(prompt: str) -> bytes:
    """Four bytes that questions about the same passage share, by their first 300 normalised characters."""
    start = " ".join(tokenise(prompt[:600]))[:300]
    return hashlib.blake2b(start.encode(), digest_size=4).digest()


def artefact_version(model: Tensors, base: Tensors) -> str:
    """A name that follows from the content."""
    digest = hashlib.sha256(save(dict(sorted(model.items()))) + save(dict(sorted(base.items()))))
    return f"v{SCHEMA_VERSION}-{digest.hexdigest()[:12]}"


def with_curves(manifest: Manifest, tensors: Tensors, valid: EncodedRows) -> Manifest:
    """`manifest` with the curves of these tensors on `valid`.

    Raises `TrainingDataError` without full-ladder rows."""
    found = predicted(model_from_tensors(manifest, tensors), valid)
    curves = valid_curves(found.p, valid, manifest.tiers)
    if curves is None:
        raise TrainingDataError("no valid row has the outcome of every tier; the cost-quality curve needs some.")
    return msgspec.structs.replace(manifest, curves=curves)


def heuristic_rows(prompts: Sequence[RoutingInput]) -> npt.NDArray[np.float32]:
    """The heuristic's p_ok of the tiers below the strongest, [n, tiers - 1]: a baseline row."""
    return np.array([heuristic_prediction(p, TIERS).p_ok[:-1] for p in prompts], np.float32)


def report_on(
    model: OutcomeModel, encoded: dict[str, EncodedRows], prompts: dict[str, list[RoutingInput]], split: str
) -> Report:
    """The model measured on a split of `encoded`, beside the heuristic; `encoded` and `prompts` by split."""
    baselines = {"length heuristic": (heuristic_rows(prompts["valid"]), heuristic_rows(prompts[split]))}
    return evaluate(
        model,
        train=encoded["train"],
        valid=encoded["valid"],
        test=encoded[split],
        baselines=baselines,
        prefix="unseen domains, " if split == "unseen" else "",
    )


def encode_split(
    encoder: Encoder, rows: Sequence[OutcomeRow], prompts: Sequence[RoutingInput], groups: Sequence[str]
) -> EncodedRows:
    """`rows` as the encoder sees them, with their labels; `groups` numbers the domains."""
    number = {name: i for i, name in enumerate(groups)}
    return encode_rows(
        encoder,
        prompts,
        outcome_labels(tier_scores(list(rows))),
        group=np.array([number[r.domain] for r in rows], np.int32),
        held=np.array([r.split != "train" for r in rows]),
    )


def first_manifest(
    encoder: StoredEncoder, tensors: Tensors, base: EncodedRows, groups: list[str], rows: list[OutcomeRow], seed: int
) -> Manifest:
    """The manifest of a first version that `rows` trained: everything but curves and metrics."""
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
        data_sha256=data_hash(rows),
        seed=seed,
        groups=groups,
        curves=Curves(
            rows=0, prices=[], lambda_rule=[], tau_rule=[], default_rule="lambda", default_quality_target=1.0
        ),
        metrics={},
        files={},
    )
