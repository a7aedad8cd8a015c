"""What stages 2 and 3 add to stage 1, on outcomes that no head was fitted on: AUC within tasks, cascades, lengths."""

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.outcome_folder import OutcomeFolder, Outcomes
from classifier.probes import Label
from classifier.training.cascade import CascadeCurve, Stage, cascade_curves, pair_of
from classifier.training.length_fit import fit_lengths
from classifier.training.metrics import auc, brier, calibration_band, calibration_error, interval, resamples
from classifier.training.probe_fit import (
    fit_head,
    fit_stages,
    folds_of,
    judged_by,
    labels_of,
    logits_of,
    stage_1_logits,
)

Float = npt.NDArray[np.float32]
Floats = npt.NDArray[np.floating]

OUTER_FOLDS = 5
TIMES = 1000
LEVELS = 100
# As in `AnswerLength`: embeddings are of unit length, standardised features of unit variance each.
EMBEDDING_SCALE = 4.0
STAGES = ("shipped", "stage 1", "stages 1+2", "stages 1+2+3, opening", "stages 1+2+3, whole")
WHEN: dict[str, Stage] = {
    "shipped": "prompt",
    "stage 1": "prompt",
    "stages 1+2": "state",
    "stages 1+2+3, opening": "opening",
    "stages 1+2+3, whole": "whole",
}


class StageScore(msgspec.Struct, frozen=True, kw_only=True):
    """How well one stage tells good answers from bad ones; brackets are 95% bootstrap intervals.

    `auc_in_task` counts pairs of prompts of one task only, `auc_in_level` of one task and level; `more_in_task` and
    `more_in_level`: how much that is above `stage 1` alone, paired. `ece_band`: the most that a perfect model would
    show.
    """

    stage: str
    auc: float
    auc_interval: tuple[float, float]
    auc_in_task: float
    auc_in_task_interval: tuple[float, float]
    more_in_task: float
    more_in_task_interval: tuple[float, float]
    auc_in_level: float
    auc_in_level_interval: tuple[float, float]
    more_in_level: float
    more_in_level_interval: tuple[float, float]
    brier: float
    ece: float
    ece_band: float


class TierScores(msgspec.Struct, frozen=True, kw_only=True):
    """The stages of one tier on its outcomes: `rate` of them are good by `label`."""

    tier: int
    model: str
    label: Label
    rows: int
    rate: float
    stages: list[StageScore]


class Cascade(msgspec.Struct, frozen=True, kw_only=True):
    """Two tiers' ways of sharing the prompts; accuracies and mean costs of each tier alone."""

    weak: int
    strong: int
    rows: int
    weak_accuracy: float
    strong_accuracy: float
    either_accuracy: float
    weak_cost_usd: float
    strong_cost_usd: float
    curves: list[CascadeCurve]


class LengthScore(msgspec.Struct, frozen=True, kw_only=True):
    """How far the predicted answer lengths of one tier are off, in tokens, beside always predicting the mean."""

    tier: int
    rows: int
    mean_tokens: float
    absolute_error: float
    absolute_error_of_mean: float
    r_squared_of_log: float


class ProbeReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything measured on one folder of outcomes, by `OUTER_FOLDS`-fold cross-validation over prompts."""

    catalog: str
    classifier_version: str
    seed: int
    layers: dict[str, int]
    accuracies: dict[str, dict[str, tuple[int, int]]]
    tiers: list[TierScores]
    cascades: list[Cascade]
    lengths: list[LengthScore]


def evaluate_outcomes(folder: OutcomeFolder, strongest: int, seed: int) -> ProbeReport:
    """Measure every tier with a hidden state, for both labels where the strongest tier was asked, and every pair."""
    common = folder.load_common()
    probed = [k for k, outcomes in common.items() if outcomes.state.shape[1]]
    labels: list[Label] = ["correct", "no_worse"] if strongest in common else ["correct"]
    tiers, cascades = [], []
    for k in probed:
        for label in labels:
            if label == "no_worse" and k == strongest:
                continue
            judged = judged_by(k, common, label, strongest)
            y = np.stack([labels_of(common, label, strongest)[j] for j in judged], axis=1)
            unseen = _unseen_logits(common[k], y, judged, seed)
            model = folder.manifest.tiers[str(k)].model
            tiers.append(_scores(k, model, label, common[k], y[:, 0], {s: z[:, 0] for s, z in unseen.items()}, seed))
            if label == "correct":
                cascades += [_cascade(folder, common, k, j, judged, unseen, seed) for j in judged[1:]]
    return ProbeReport(
        catalog=folder.manifest.catalog,
        classifier_version=folder.manifest.classifier_version,
        seed=seed,
        layers={k: tier.layer for k, tier in folder.manifest.tiers.items()},
        accuracies={str(k): _accuracies(outcomes, folder.manifest.groups) for k, outcomes in common.items()},
        tiers=tiers,
        cascades=cascades,
        lengths=_lengths(common, folder.manifest.encoder, seed),
    )


def _unseen_logits(outcomes: Outcomes, y: Floats, judged: list[int], seed: int) -> dict[str, Float]:
    """Logits [n, judged] of every stage, each row's by heads that were fitted without its fold."""
    shipped = stage_1_logits(outcomes, judged)
    unseen = {stage: shipped.copy() for stage in STAGES}
    outer = folds_of(outcomes.row, seed + 1, OUTER_FOLDS)
    seen_before = np.concatenate([outcomes.features, outcomes.embedding * EMBEDDING_SCALE], axis=1)
    for number in np.unique(outer):
        own = np.flatnonzero(outer == number)
        others = np.flatnonzero(outer != number)
        train = outcomes.take(others)
        # Stage 1 at its best: fitted on the same outcomes, so that the later stages are not flattered.
        prompt, _ = fit_head(seen_before[others], shipped[others], y[others], train.row, seed)
        unseen["stage 1"][own] = prompt.logits(seen_before[own], shipped[own])
        logits = logits_of(fit_stages(train, y[others], judged, seed), outcomes.take(own), judged)
        for stage, values in zip(STAGES[2:], (logits.state, logits.opening, logits.whole), strict=True):
            unseen[stage][own] = values
    return unseen


def _scores(
    tier: int, model: str, label: Label, outcomes: Outcomes, y: Floats, logits: dict[str, Float], seed: int
) -> TierScores:
    n = len(y)
    weights = np.concatenate([np.ones((1, n), np.float32), resamples(n, TIMES, seed)])
    tasks = outcomes.group
    groups = {"": None, "task": tasks, "level": tasks.astype(int) * LEVELS + outcomes.level}
    drawn = {s: {g: auc(y, z, member, weights) for g, member in groups.items()} for s, z in logits.items()}
    base = drawn["stage 1"]
    stages = []
    for stage, z in logits.items():
        p = (1 / (1 + np.exp(-z.astype(np.float64)))).clip(1e-6, 1 - 1e-6)
        of = drawn[stage]
        more = {g: of[g] - base[g] for g in groups}
        stages.append(
            StageScore(
                stage=stage,
                auc=float(of[""][0]),
                auc_interval=interval(of[""][1:]),
                auc_in_task=float(of["task"][0]),
                auc_in_task_interval=interval(of["task"][1:]),
                more_in_task=float(more["task"][0]),
                more_in_task_interval=interval(more["task"][1:]),
                auc_in_level=float(of["level"][0]),
                auc_in_level_interval=interval(of["level"][1:]),
                more_in_level=float(more["level"][0]),
                more_in_level_interval=interval(more["level"][1:]),
                brier=brier(y, p),
                ece=calibration_error(y, p),
                ece_band=calibration_band(p, seed),
            )
        )
    return TierScores(tier=tier, model=model, label=label, rows=n, rate=float(y.mean()), stages=stages)


def _cascade(
    folder: OutcomeFolder,
    common: dict[int, Outcomes],
    weak: int,
    strong: int,
    judged: list[int],
    unseen: dict[str, Float],
    seed: int,
) -> Cascade:
    prices = [folder.manifest.tiers[str(k)] for k in (weak, strong)]
    cheap, dear = ((t.input_usd_per_million, t.output_usd_per_million) for t in prices)
    pair = pair_of(common[weak], common[strong], cheap, dear)
    place = judged.index(strong)
    ways: dict[str, tuple[Stage, Floats]] = {
        stage: (WHEN[stage], _sigmoid(z[:, place]) - _sigmoid(z[:, 0])) for stage, z in unseen.items()
    }
    ways["by chance"] = ("prompt", np.random.default_rng(seed).random(len(pair.weak_right)))
    return Cascade(
        weak=weak,
        strong=strong,
        rows=len(pair.weak_right),
        weak_accuracy=float(pair.weak_right.mean()),
        strong_accuracy=float(pair.strong_right.mean()),
        either_accuracy=float(np.maximum(pair.weak_right, pair.strong_right).mean()),
        weak_cost_usd=float(pair.weak_cost.mean()),
        strong_cost_usd=float(pair.strong_cost.mean()),
        curves=cascade_curves(pair, ways, "stage 1", seed),
    )


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
    """Right answers and questions by task."""
    found: dict[str, tuple[int, int]] = {}
    for number, name in enumerate(groups):
        member = outcomes.group == number
        if member.any():
            found[name] = (int(outcomes.correct[member].sum()), int(member.sum()))
    return found


def _sigmoid(logits: Any) -> Floats:
    return 1 / (1 + np.exp(-np.asarray(logits, np.float64)))
