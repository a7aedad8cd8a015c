"""Fits stages 2 and 3 on collected outcomes: regularised logistic heads, each over the one before, calibrated apart."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from classifier.outcome_folder import Outcomes
from classifier.probes import Label, StageHead, logit, standardised

Float = npt.NDArray[np.float32]
Floats = npt.NDArray[np.floating]
Flags = npt.NDArray[np.bool_]
Folds = npt.NDArray[np.intp]

FOLDS = 5
CALIBRATION_FOLD = 0
# Variances of the weights' prior; which of them is best is found by cross-validation within the rows at hand.
STRENGTHS = (1e-3, 1e-2, 1e-1)
# The earlier stage's logit enters larger than it is, so that its weight is hardly drawn to anything.
EARLIER_SCALE = 10.0
MIN_SCALE = 1e-4
# Wide evidence is fitted along its directions of greatest variance, which some hundred rows can tell apart; the
# weights are turned back, so that a probe stays one vector per outcome.
MOST_COMPONENTS = 64
NEWTON_STEPS = 25


class FittedStages(NamedTuple):
    """The three heads of one tier's probe."""

    state: StageHead
    opening: StageHead
    whole: StageHead


class StageLogits(NamedTuple):
    """Logits [n, judged] of rows after each stage, float32; `before` are those of stage 1."""

    before: Float
    state: Float
    opening: Float
    whole: Float


def labels_of(common: dict[int, Outcomes], label: Label, strongest: int) -> dict[int, npt.NDArray[np.float64]]:
    """What is learnt by tier, 0 or 1 [n]; `no_worse_k = correct_k or not correct_strongest` (DESIGN §4)."""
    if label == "correct":
        return {k: outcomes.correct.astype(np.float64) for k, outcomes in common.items()}
    failed = ~common[strongest].correct
    return {k: (outcomes.correct | failed).astype(np.float64) for k, outcomes in common.items()}


def judged_by(tier: int, common: dict[int, Outcomes], label: Label, strongest: int) -> list[int]:
    """The tiers that evidence of `tier` says something about: its own and those above. A strongest tier is certain to
    be no worse than itself."""
    certain = strongest if label == "no_worse" else None
    return [k for k in sorted(common) if k >= tier and k != certain]


def folds_of(rows: npt.NDArray[np.int64], seed: int, count: int = FOLDS) -> Folds:
    """The fold [n] of each row: by the hash of its prompt, so that it is the same whatever else was collected."""
    mixed = (rows.astype(np.uint64) ^ np.uint64(seed * 0x9E3779B97F4A7C15 % 2**64)) * np.uint64(0xBF58476D1CE4E5B9)
    return ((mixed >> np.uint64(33)) % np.uint64(count)).astype(np.intp)


def stage_1_logits(outcomes: Outcomes, judged: list[int]) -> Float:
    """Logits [n, judged] of the stored predictions."""
    columns = [[logit(float(p)) for p in outcomes.p_ok[:, tier - 1]] for tier in judged]
    return np.asarray(columns, np.float32).T


def fit_stages(outcomes: Outcomes, labels: Floats, judged: list[int], seed: int) -> FittedStages:
    """The heads of one tier's probe; `labels` [n, judged].

    Four fifths of the rows fit the heads, the rest calibrates them (Platt 1999). A later stage is fitted on what the
    earlier one says of rows that it was not fitted on, for else it would trust it too much.
    """
    before = stage_1_logits(outcomes, judged)
    state, unseen = fit_head(outcomes.state, before, labels, outcomes.row, seed)
    opening, _ = fit_head(outcomes.opening, unseen, labels, outcomes.row, seed)
    whole, _ = fit_head(outcomes.whole, unseen, labels, outcomes.row, seed)
    return FittedStages(state, opening, whole)


def logits_of(stages: FittedStages, outcomes: Outcomes, judged: list[int]) -> StageLogits:
    """What the stages say of `outcomes`."""
    before = stage_1_logits(outcomes, judged)
    state = stages.state.logits(outcomes.state, before)
    opening, whole = stages.opening.logits(outcomes.opening, state), stages.whole.logits(outcomes.whole, state)
    return StageLogits(before, state, opening, whole)


def fit_head(
    evidence: Float, before: Float, labels: Floats, rows: npt.NDArray[np.int64], seed: int
) -> tuple[StageHead, Float]:
    """The head over `evidence` [n, e] and `before` [n, t], and its logits [n, t] by heads fitted without each row."""
    fold = folds_of(rows, seed)
    held = fold == CALIBRATION_FOLD
    strengths = [_best_strength(evidence, before[:, j], labels[:, j], fold, held) for j in range(labels.shape[1])]
    head = _calibrated(evidence, before, labels, ~held, held, strengths)
    unseen = head.logits(evidence, before)
    for number in np.unique(fold[~held]):
        own, others = fold == number, ~held & (fold != number)
        without = _calibrated(evidence, before, labels, others, held, strengths)
        unseen[own] = without.logits(evidence[own], before[own])
    return head, unseen


def _calibrated(
    evidence: Float, before: Float, labels: Floats, used: Flags, held: Flags, strengths: list[float]
) -> StageHead:
    mean, scale = _moments(evidence[used])
    x = standardised(evidence, mean, scale)
    axes = _axes(x[used])
    turned = x @ axes
    weights, earlier, biases = [], [], []
    for j, strength in enumerate(strengths):
        design = _design(turned, before[:, j])
        coef, bias = _fit(design[used], labels[used, j], strength)
        slope, shift = _platt(design[held] @ coef + bias, labels[held, j])
        weights.append(slope * (axes @ coef[:-1]))
        earlier.append(slope * coef[-1] * EARLIER_SCALE)
        biases.append(slope * bias + shift)
    parts = (mean, scale, np.stack(weights, axis=1), np.asarray(earlier), np.asarray(biases))
    return StageHead(*(part.astype(np.float32) for part in parts))


def _best_strength(evidence: Float, before: Floats, label: Floats, fold: Folds, held: Flags) -> float:
    """The strength of the least cross-validated loss among the rows that are not held out."""
    used = np.flatnonzero(~held)
    x = standardised(evidence, *_moments(evidence[used]))
    design = _design(x @ _axes(x[used]), before)
    losses = []
    for strength in STRENGTHS:
        loss = 0.0
        for number in np.unique(fold[used]):
            train, test = used[fold[used] != number], used[fold[used] == number]
            coef, bias = _fit(design[train], label[train], strength)
            z = design[test] @ coef + bias
            loss += float((np.logaddexp(0.0, z) - label[test] * z).sum())
        losses.append(loss)
    return STRENGTHS[int(np.argmin(losses))]


def _moments(evidence: Float) -> tuple[Float, Float]:
    return evidence.mean(axis=0), np.maximum(evidence.std(axis=0), MIN_SCALE)


def _axes(x: Float) -> npt.NDArray[np.float64]:
    """Directions [e, c] to fit along: all of narrow evidence, the principal ones of wide evidence."""
    if x.shape[1] <= MOST_COMPONENTS:
        return np.eye(x.shape[1])
    _, axes = np.linalg.eigh(x.T.astype(np.float64) @ x)
    return axes[:, ::-1][:, :MOST_COMPONENTS]


def _design(x: Floats, before: Floats) -> npt.NDArray[np.float64]:
    return np.column_stack([x, before * EARLIER_SCALE]).astype(np.float64)


def _fit(design: Floats, label: Floats, strength: float) -> tuple[npt.NDArray[np.float64], float]:
    """Without evidence the stage before stands."""
    centre = np.zeros(design.shape[1])
    centre[-1] = 1 / EARLIER_SCALE
    return _logistic(design, label, strength, centre)


def _platt(logits: Floats, label: Floats) -> tuple[float, float]:
    """Slope and shift that calibrate `logits`, drawn towards changing nothing by few rows; the order never turns."""
    coef, bias = _logistic(np.asarray(logits, np.float64)[:, None], label, 1.0, np.ones(1))
    return max(float(coef[0]), 1e-3), bias


def _logistic(
    x: Floats, label: Floats, strength: float, centre: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], float]:
    """(coef, bias) that minimise `cross-entropy + |coef - centre|^2 / (2 strength)`, by Newton's method.

    Some thousand small fits make one report, and each takes a few steps here.
    """
    inputs = np.column_stack([x, np.ones(len(x))])
    # The bias is as good as free, and still finite where all labels are alike.
    penalty = np.append(np.full(len(centre), 1 / strength), 1e-2)
    prior = np.append(centre, 0.0)
    theta = prior.copy()
    for _ in range(NEWTON_STEPS):
        p = 1 / (1 + np.exp(-np.clip(inputs @ theta, -30, 30)))
        gradient = inputs.T @ (p - label) + penalty * (theta - prior)
        hessian = (inputs.T * (p * (1 - p))) @ inputs + np.diag(penalty)
        step = np.linalg.solve(hessian, gradient)
        # Far from the optimum a full step may overshoot.
        theta -= step / max(1.0, float(np.abs(step).max()))
        if np.abs(step).max() < 1e-6:
            break
    return theta[:-1], float(theta[-1])
