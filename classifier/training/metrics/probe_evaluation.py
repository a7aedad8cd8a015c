"""Evaluate what evidence adds to the prompt's probability, out of fold: AUC and calibration; and answer lengths."""

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
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
from classifier.training.data.outcome_folder import OutcomeFolder, Outcomes
from classifier.training.fitting.probes import (
    Examples,
    examples_of,
    fit_judge,
    fit_lengths,
    folds_of,
    judged_by,
    labels_of,
    unseen_logits,
)
from classifier.training.metrics.metrics import (
    auc,
    brier,
    calibration_band,
    calibration_error,
    calibration_slope,
    interval,
    resamples,
)

Floats = npt.NDArray[np.floating]

TIMES = 1000


def _intervals(**measured: Floats) -> dict[str, Any]:
    """Return each figure, the first of its draws [b], and its 95% interval by the others, by their fields' names."""
    figures: dict[str, Any] = {name: float(draws[0]) for name, draws in measured.items()}
    return figures | {f"{name}_interval": interval(draws[1:]) for name, draws in measured.items()}


Ints = npt.NDArray[np.integer]

OUTER_FOLDS = 5
LEVELS = 100
ALONE, FITTED = "p alone", "p and the prompt's features, fitted here"
EVIDENCE, AGREEMENT, SHUFFLED = "p and evidence", "p, evidence and agreement", "p and shuffled evidence"


class WayScore(msgspec.Struct, frozen=True, kw_only=True):
    """How well one way to judge separates good from bad answers; intervals are 95% bootstrap intervals."""

    way: str
    auc: float
    auc_interval: tuple[float, float]
    auc_in_task: float
    """By pairs of prompts of one task only."""
    auc_in_task_interval: tuple[float, float]
    more_in_task: float
    """The gain over `p alone` within tasks, paired."""
    more_in_task_interval: tuple[float, float]
    auc_in_level: float
    """By pairs of prompts of one task and level only."""
    auc_in_level_interval: tuple[float, float]
    more_in_level: float
    """The gain over `p alone` within tasks and levels, paired."""
    more_in_level_interval: tuple[float, float]
    brier: float
    ece: float
    ece_band: float
    """The upper bound for a perfect model."""
    slope: float
    """Slope of the outcome on the predicted logit; 1 for a calibrated model (SPEC RT-06)."""


class TierScores(msgspec.Struct, frozen=True, kw_only=True):
    """The ways to judge one tier's answers: `rate` of them are good by `label`."""

    tier: int
    model: str
    label: Label
    rows: int
    rate: float
    ways: list[WayScore]


class LengthScore(msgspec.Struct, frozen=True, kw_only=True):
    """Error of the predicted answer lengths of one tier, in tokens, compared with predicting the mean."""

    tier: int
    rows: int
    mean_tokens: float
    absolute_error: float
    absolute_error_of_mean: float
    r_squared_of_log: float


class ProbeReport(msgspec.Struct, frozen=True, kw_only=True):
    """All metrics of one folder of outcomes, by `OUTER_FOLDS`-fold cross-validation over prompts."""

    catalog: str
    classifier_version: str
    seed: int
    in_use: list[int]
    accuracies: dict[str, dict[str, tuple[int, int]]]
    tiers: list[TierScores]
    lengths: list[LengthScore]


def evaluate_outcomes(folder: OutcomeFolder, strongest: int, in_use: list[int], seed: int) -> ProbeReport:
    """Evaluate every tier, for both labels if the strongest tier was asked."""
    common = folder.load_common()
    labels: list[Label] = ["correct", "no_worse"] if strongest in common else ["correct"]
    tiers = []
    for k, outcomes in common.items():
        for label in labels:
            if label == "no_worse" and k == strongest:
                continue
            judged = judged_by(k, common, label, strongest)
            y = np.stack([labels_of(common, label, strongest)[j] for j in judged], axis=1)
            examples = examples_of(outcomes, y, judged)
            first = {way: z[:, 0] for way, z in _unseen_by_way(outcomes, examples, seed).items()}
            tiers.append(
                TierScores(
                    tier=k,
                    model=folder.manifest.tiers[str(k)].model,
                    label=label,
                    rows=len(outcomes),
                    rate=float(y[:, 0].mean()),
                    ways=way_scores(y[:, 0], first, outcomes.group.astype(int), outcomes.level, seed),
                )
            )
    return ProbeReport(
        catalog=folder.manifest.catalog,
        classifier_version=folder.manifest.classifier_version,
        seed=seed,
        in_use=in_use,
        accuracies={str(k): _accuracies(outcomes, folder.manifest.groups) for k, outcomes in common.items()},
        tiers=tiers,
        lengths=_lengths(common, folder.manifest.encoder, seed),
    )


def _unseen_by_way(outcomes: Outcomes, examples: Examples, seed: int) -> dict[str, Floats]:
    """Return out-of-fold logits [n, judged] of every way."""
    n = len(outcomes)
    agreement_rows = np.flatnonzero(~np.isnan(outcomes.agreement))
    once = examples.take(np.arange(n))
    shuffled = once._replace(evidence=np.random.default_rng(seed).permutation(once.evidence))
    unseen: dict[str, Floats] = {
        # As served: a separate bias in each fold would only disturb the order.
        ALONE: once.prompt,
        FITTED: unseen_logits(once._replace(evidence=outcomes.features), seed),
        SHUFFLED: unseen_logits(shuffled, seed),
    }
    seen = unseen_logits(examples, seed)
    unseen[EVIDENCE] = seen[:n]
    if len(agreement_rows):
        unseen[AGREEMENT] = seen[:n].copy()
        unseen[AGREEMENT][agreement_rows] = seen[n:]
    return unseen


def way_scores(y: Floats, logits: dict[str, Floats], task: Ints, level: Ints, seed: int) -> list[WayScore]:
    """Return the scores of all ways by `logits` [n] for labels `y` [n], relative to `ALONE`; by `task` and `level`."""
    n = len(y)
    weights = np.concatenate([np.ones((1, n), np.float32), resamples(n, TIMES, seed)])
    groups = {"": None, "task": task, "level": task * LEVELS + level}
    drawn = {way: {g: auc(y, z, member, weights) for g, member in groups.items()} for way, z in logits.items()}
    base = drawn[ALONE]
    scores = []
    for way, z in logits.items():
        p = (1 / (1 + np.exp(-z.astype(np.float64)))).clip(1e-6, 1 - 1e-6)
        of = drawn[way]
        scores.append(
            WayScore(
                way=way,
                **_intervals(
                    auc=of[""],
                    auc_in_task=of["task"],
                    more_in_task=of["task"] - base["task"],
                    auc_in_level=of["level"],
                    more_in_level=of["level"] - base["level"],
                ),
                brier=brier(y, p),
                ece=calibration_error(y, p),
                ece_band=calibration_band(p, seed),
                slope=calibration_slope(y, p),
            )
        )
    return scores


def _lengths(common: dict[int, Outcomes], encoder: str, seed: int) -> list[LengthScore]:
    any_tier = next(iter(common.values()))
    tokens = np.stack([outcomes.answer_tokens for outcomes in common.values()], axis=1).astype(np.float64)
    predicted, mean = np.empty_like(tokens), np.empty_like(tokens)
    outer = folds_of(any_tier.row, seed + 1, OUTER_FOLDS)
    for number in np.unique(outer):
        own, others = np.flatnonzero(outer == number), np.flatnonzero(outer != number)
        lengths = fit_lengths({k: outcomes.take(others) for k, outcomes in common.items()}, encoder, seed)
        predicted[own] = lengths.tokens(any_tier.features[own], any_tier.embedding[own])
        mean[own] = tokens[others].mean(axis=0)
    residual = ((np.log1p(tokens) - np.log1p(predicted)) ** 2).sum(axis=0)
    spread = ((np.log1p(tokens) - np.log1p(tokens).mean(axis=0)) ** 2).sum(axis=0)
    return [
        LengthScore(
            tier=k,
            rows=len(tokens),
            mean_tokens=float(tokens[:, j].mean()),
            absolute_error=float(np.abs(predicted[:, j] - tokens[:, j]).mean()),
            absolute_error_of_mean=float(np.abs(mean[:, j] - tokens[:, j]).mean()),
            r_squared_of_log=float(1 - residual[j] / max(spread[j], 1e-12)),
        )
        for j, k in enumerate(common)
    ]


def _accuracies(outcomes: Outcomes, groups: list[str]) -> dict[str, tuple[int, int]]:
    """Return correct answers and questions by task."""
    members = {name: outcomes.group == number for number, name in enumerate(groups)}
    return {name: (int(outcomes.correct[mask].sum()), int(mask.sum())) for name, mask in members.items() if mask.any()}


LEAST_ROWS = 100


class ProbesMade(msgspec.Struct, frozen=True, kw_only=True):
    """The folder of the models, and their metrics."""

    folder: Path
    report: ProbeReport


def make_probes(outcomes: Path, root: Path, strongest: int, *, promote: bool, seed: int) -> ProbesMade:
    """Fit and evaluate the evidence models of the tiers in `outcomes`; save those that beat the prompt in `root`.

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
    for k, tier_outcomes in common.items():
        judged = judged_by(k, common, label, strongest)
        if not judged or judged[0] != k:
            continue
        head = fit_judge(examples_of(tier_outcomes, np.stack([labels[j] for j in judged], axis=1), judged), seed)
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
                reads_agreement=not bool(np.isnan(tier_outcomes.agreement).all()),
            )
        )
    lengths = None
    if tuple(folder.manifest.feature_names) == FEATURE_NAMES:
        lengths = fit_lengths(common, folder.manifest.encoder, seed)
        tensors |= lengths.tensors()
    length_tiers = [] if lengths is None else lengths.tiers
    report = evaluate_outcomes(folder, strongest, [spec.tier for spec in specs], seed)
    manifest = ProbeManifest(
        schema_version=SCHEMA_VERSION,
        version=f"probes-{_hash(tensors)}",
        catalog=folder.manifest.catalog,
        label=label,
        models=specs,
        lengths=length_tiers,
        length_fingerprints=[folder.manifest.tiers[str(k)].fingerprint for k in length_tiers],
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
