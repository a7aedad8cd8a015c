"""The command `aio classifier probes`: from a folder of outcomes to an artefact of evidence models, with metrics."""

import hashlib
from pathlib import Path

import msgspec
import numpy as np
from threadpoolctl import threadpool_limits

from classifier.errors import TrainingDataError
from classifier.evidence import (
    EVIDENCE_NAMES,
    SCHEMA_VERSION,
    JudgedTier,
    Label,
    ProbeManifest,
    Tensors,
    head_tensors,
    save_probes,
)
from classifier.features.surface_features import FEATURE_NAMES
from classifier.registry.registry import ArtefactRegistry
from classifier.training.data.outcome_folder import OutcomeFolder
from classifier.training.fitting.probes import examples_of, fit_judge, fit_lengths, judged_by, labels_of
from classifier.training.metrics.probe_evaluation import ProbeReport, evaluate_outcomes

LEAST_ROWS = 100


class ProbesMade(msgspec.Struct, frozen=True, kw_only=True):
    """The folder of the models, and their metrics."""

    folder: Path
    report: ProbeReport


def make_probes(outcomes: Path, root: Path, strongest: int, *, promote: bool, seed: int) -> ProbesMade:
    """Fit and evaluate the evidence models of the tiers in `outcomes`, and save those that beat the prompt alone in
    `root`.

    Raises `TrainingDataError` for too few outcomes, or for outcomes with another kind of evidence.
    """
    # Hundreds of small fits, each slower with several threads.
    with threadpool_limits(1, user_api="blas"):
        return _made(outcomes, root, strongest, promote=promote, seed=seed)


def _made(outcomes: Path, root: Path, strongest: int, *, promote: bool, seed: int) -> ProbesMade:
    folder = OutcomeFolder.opened(outcomes)
    common = folder.load_common()
    rows = len(next(iter(common.values())))
    if rows < LEAST_ROWS:
        raise TrainingDataError(f"{outcomes} has {rows} prompts that every tier answered; {LEAST_ROWS} are needed.")
    if folder.manifest.evidence_names != list(EVIDENCE_NAMES):
        raise TrainingDataError(f"{outcomes} holds other evidence than this program reads; collect into a new folder.")
    label: Label = "no_worse" if strongest in common else "correct"
    labels = labels_of(common, label, strongest)
    tensors: Tensors = {}
    specs = []
    for k, found in common.items():
        judged = judged_by(k, common, label, strongest)
        if not judged or judged[0] != k:
            continue
        head = fit_judge(examples_of(found, np.stack([labels[j] for j in judged], axis=1), judged), seed)
        if head is None:
            continue
        tensors |= head_tensors(k, head)
        collected = folder.manifest.tiers[str(k)]
        specs.append(
            JudgedTier(
                tier=k,
                model=collected.model,
                fingerprint=collected.fingerprint,
                judges=judged,
                reads_agreement=not bool(np.isnan(found.agreement).all()),
            )
        )
    lengths = None
    if tuple(folder.manifest.feature_names) == FEATURE_NAMES:
        lengths = fit_lengths(common, folder.manifest.encoder, seed)
        tensors |= lengths.tensors()
    report = evaluate_outcomes(folder, strongest, [spec.tier for spec in specs], seed)
    manifest = ProbeManifest(
        schema_version=SCHEMA_VERSION,
        version=f"probes-{_hash(tensors)}",
        catalog=folder.manifest.catalog,
        label=label,
        models=specs,
        lengths=[] if lengths is None else lengths.tiers,
        length_fingerprints=[]
        if lengths is None
        else [folder.manifest.tiers[str(k)].fingerprint for k in lengths.tiers],
        encoder=folder.manifest.encoder,
        feature_names=folder.manifest.feature_names,
        evidence_names=list(EVIDENCE_NAMES),
        classifier_version=folder.manifest.classifier_version,
        rows=rows,
        seed=seed,
        metrics=msgspec.to_builtins(report),
    )
    saved = save_probes(root, manifest, tensors)
    if promote:
        ArtefactRegistry(root).promote(manifest.version)
    return ProbesMade(folder=saved, report=report)


def _hash(tensors: Tensors) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + np.ascontiguousarray(tensors[name]).tobytes())
    return digest.hexdigest()[:12]
