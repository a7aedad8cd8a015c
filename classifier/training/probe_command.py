"""`aio classifier probes`: from a folder of outcomes to an artefact of probes, measured, and a page of figures."""

import hashlib
from pathlib import Path

import msgspec
import numpy as np

from classifier.errors import TrainingDataError
from classifier.features import FEATURE_NAMES
from classifier.outcome_folder import CollectedTier, OutcomeFolder
from classifier.probe_artefact import SCHEMA_VERSION, ProbeManifest, evidence_names, save_probes
from classifier.probes import Label, ProbedTier, Tensors, head_tensors
from classifier.registry import ArtefactRegistry
from classifier.training.length_fit import fit_lengths
from classifier.training.probe_evaluation import ProbeReport, evaluate_outcomes
from classifier.training.probe_fit import fit_stages, judged_by, labels_of

LEAST_ROWS = 100


class ProbesMade(msgspec.Struct, frozen=True, kw_only=True):
    """Where the probes are, and how good they are."""

    folder: Path
    report: ProbeReport


def make_probes(outcomes: Path, root: Path, strongest: int, *, promote: bool, seed: int) -> ProbesMade:
    """Fit and measure the probes of every tier in `outcomes` that shows its hidden state; keep them in `root`.

    Raises `TrainingDataError` for too few outcomes, or none with evidence.
    """
    folder = OutcomeFolder.opened(outcomes)
    common = folder.load_common()
    rows = len(next(iter(common.values())))
    probed = [k for k, found in common.items() if found.state.shape[1]]
    if rows < LEAST_ROWS:
        raise TrainingDataError(f"{outcomes} has {rows} prompts that every tier answered; {LEAST_ROWS} are needed.")
    if not probed:
        raise TrainingDataError(f"{outcomes} has no hidden states; collect from tiers of a core, not from servers.")
    label: Label = "no_worse" if strongest in common else "correct"
    labels = labels_of(common, label, strongest)
    tensors: Tensors = {}
    specs = []
    for k in probed:
        judged = judged_by(k, common, label, strongest)
        if not judged or judged[0] != k:
            continue
        stages = fit_stages(common[k], np.stack([labels[j] for j in judged], axis=1), judged, seed)
        for name, head in stages._asdict().items():
            tensors |= head_tensors(f"tier_{k}.{name}", head)
        specs.append(_spec(k, folder.manifest.tiers[str(k)], folder, judged))
    lengths = None
    if tuple(folder.manifest.feature_names) == FEATURE_NAMES:
        lengths = fit_lengths(common, folder.manifest.encoder, seed)
        tensors |= lengths.tensors()
    report = evaluate_outcomes(folder, strongest, seed)
    manifest = ProbeManifest(
        schema_version=SCHEMA_VERSION,
        version=f"probes-{_hash(tensors)}",
        catalog=folder.manifest.catalog,
        label=label,
        probes=specs,
        lengths=[] if lengths is None else lengths.tiers,
        length_fingerprints=[]
        if lengths is None
        else [folder.manifest.tiers[str(k)].fingerprint for k in lengths.tiers],
        encoder=folder.manifest.encoder,
        feature_names=folder.manifest.feature_names,
        evidence_names=evidence_names(),
        classifier_version=folder.manifest.classifier_version,
        rows=rows,
        seed=seed,
        metrics=msgspec.to_builtins(report),
    )
    saved = save_probes(root, manifest, tensors)
    if promote:
        ArtefactRegistry(root).promote(manifest.version)
    return ProbesMade(folder=saved, report=report)


def _spec(tier: int, collected: CollectedTier, folder: OutcomeFolder, judged: list[int]) -> ProbedTier:
    return ProbedTier(
        tier=tier,
        model=collected.model,
        fingerprint=collected.fingerprint,
        layer=collected.layer,
        pooling=folder.manifest.pooling,
        judges=judged,
    )


def _hash(tensors: Tensors) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + np.ascontiguousarray(tensors[name]).tobytes())
    return digest.hexdigest()[:12]
