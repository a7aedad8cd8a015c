"""Fit the judges of answers by evidence, a ridge-penalised logistic kept if it beats the prompt alone, and lengths.

Deterministic: Newton's method, folds by hashes of prompts. Answer lengths are a ridge regression of log(1 + tokens)
per tier, with a penalty chosen by cross-validation.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from classifier.evidence import EVIDENCE_NAMES, EvidenceHead, Float, Label, logit, standardised, with_agreement
from classifier.model.answer_length import AnswerLength, length_design
from classifier.training.data.outcome_folder import Outcomes

Float64 = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Folds = npt.NDArray[np.intp]

FOLDS = 5
# The number of inner folds, within which a strength is chosen.
INNER_FOLDS = 3
# Variances of the prior of the weights of standardised evidence; cross-validation chooses among them.
STRENGTHS = (3e-3, 3e-2, 3e-1)
# Precision of the prior of the prompt's weight around 1: it takes some hundred rows to overrule the prompt's order.
PROMPT_PRECISION = 10.0
# Precision of the bias around 0: weak, because the prompt's probability is of adequacy and may be far off for a tier.
BIAS_PRECISION = 1e-2
MIN_SCALE = 1e-4
NEWTON_STEPS = 40


class Examples(NamedTuple):
    """Training examples of one tier's judge: `evidence` [n, e], the logits of the prompt's own probabilities and the
    labels of the judged tiers [n, t], the hash of the prompt `row` [n], and weights [n].

    A prompt whose answer has a second sample appears twice with half the weight: without its agreement and with it.
    """

    evidence: Float
    prompt: Float
    labels: Float64
    row: npt.NDArray[np.int64]
    weight: Float64

    def take(self, index: npt.NDArray[np.integer] | Flags) -> "Examples":
        """Return the examples at these positions."""
        return Examples._make(part[index] for part in self)

    def column(self, index: int) -> "Examples":
        """Return the examples of one judged tier."""
        return self._replace(prompt=self.prompt[:, index : index + 1], labels=self.labels[:, index : index + 1])

    def without_evidence(self) -> "Examples":
        """Return the examples with the prompt's information only."""
        return self._replace(evidence=self.evidence[:, :0])


def labels_of(common: dict[int, Outcomes], label: Label, strongest: int) -> dict[int, Float64]:
    """Return the labels by tier, 0 or 1 [n]; `no_worse_k = correct_k or not correct_strongest` (docs/classifier.md)."""
    if label == "correct":
        return {k: outcomes.correct.astype(np.float64) for k, outcomes in common.items()}
    failed = ~common[strongest].correct
    return {k: (outcomes.correct | failed).astype(np.float64) for k, outcomes in common.items()}


def judged_by(tier: int, common: dict[int, Outcomes], label: Label, strongest: int) -> list[int]:
    """Return the tiers that evidence of `tier` informs about: its own and those above. The strongest tier is certain to
    be no worse than itself."""
    certain = strongest if label == "no_worse" else None
    return [k for k in sorted(common) if k >= tier and k != certain]


def folds_of(rows: npt.NDArray[np.int64], seed: int, count: int = FOLDS) -> Folds:
    """Return the fold [n] of each row by the hash of its prompt, so that it does not depend on other rows."""
    mixed = (rows.astype(np.uint64) ^ np.uint64(seed * 0x9E3779B97F4A7C15 % 2**64)) * np.uint64(0xBF58476D1CE4E5B9)
    return ((mixed >> np.uint64(33)) % np.uint64(count)).astype(np.intp)


def examples_of(outcomes: Outcomes, labels: Float64, judged: list[int]) -> Examples:
    """Return the examples of one tier's outcomes with `labels` [n, t] of the `judged` tiers: the outcomes' rows in
    order, followed by those with a second sample again."""
    columns = [[logit(float(p)) for p in outcomes.p_ok[:, tier - 1]] for tier in judged]
    twice = np.flatnonzero(~np.isnan(outcomes.agreement))
    weight = np.ones(len(outcomes))
    weight[twice] = 0.5
    once = Examples(outcomes.evidence, np.asarray(columns, np.float32).T, labels, outcomes.row, weight)
    again = once.take(twice)._replace(evidence=with_agreement(outcomes.evidence[twice], outcomes.agreement[twice]))
    return Examples._make(np.concatenate([getattr(once, name), getattr(again, name)]) for name in Examples._fields)


def fit_head(examples: Examples, seed: int) -> EvidenceHead:
    """Fit the judge of a tier: one logistic per judged tier, regularised towards the prompt's own probability."""
    mean, scale = _moments(examples.evidence)
    columns = [_fitted(examples.column(index), seed) for index in range(examples.labels.shape[1])]
    coef, before, bias = (np.stack(parts, axis=-1) for parts in zip(*columns, strict=True))
    return EvidenceHead(*(part.astype(np.float32) for part in (mean, scale, coef, before, bias)))


def fit_judge(examples: Examples, seed: int) -> EvidenceHead | None:
    """Run `fit_head`, as far as evidence helps (`is_better`): for tiers above, columns without benefit use the prompt
    alone; None without benefit for the tier's own answers."""
    tiers = examples.labels.shape[1]
    better = [is_better(examples.column(index), seed) for index in range(tiers)]
    if not better[0]:
        return None
    head, alone = fit_head(examples, seed), fit_head(examples.without_evidence(), seed)
    helps = np.asarray(better)
    return head._replace(
        coef=np.where(helps, head.coef, 0.0).astype(np.float32),
        before=np.where(helps, head.before, alone.before),
        bias=np.where(helps, head.bias, alone.bias),
    )


def is_better(examples: Examples, seed: int) -> bool:
    """Return whether the out-of-fold log loss of the first judged tier is lower with evidence than by the prompt alone,
    by more than the standard error of the difference. Agreement is not used, because most answers have none."""
    has_agreement = examples.evidence[:, EVIDENCE_NAMES.index("agreement_known")] > 0
    first = examples.take(~has_agreement).column(0)
    losses = [
        _log_loss(unseen_logits(variant, seed)[:, 0], first.labels[:, 0])
        for variant in (first.without_evidence(), first)
    ]
    gain = losses[0] - losses[1]
    return bool(gain.mean() > gain.std(ddof=1) / np.sqrt(len(gain)))


def unseen_logits(examples: Examples, seed: int) -> Float64:
    """Return out-of-fold logits [n, t] of every example; strengths are chosen within the other folds."""
    unseen = np.empty(examples.labels.shape)
    fold = _even_folds(examples, seed + 1)
    for number in np.unique(fold):
        own = fold == number
        head = fit_head(examples.take(~own), seed)
        unseen[own] = head.logits(examples.evidence[own], examples.prompt[own])
    return unseen


def _even_folds(examples: Examples, seed: int) -> Folds:
    """Return folds with equal shares of good answers by the first judged tier. With unequal shares a fold's own base
    rate, which it is not fitted on, would reverse the order of rows across folds."""
    rows, first, of = np.unique(examples.row, return_index=True, return_inverse=True)
    drawn = np.random.default_rng(seed).permutation(len(rows))
    order = np.lexsort((drawn, examples.labels[first, 0]))
    fold = np.empty(len(rows), np.intp)
    fold[order] = np.arange(len(rows)) % FOLDS
    return fold[of]


def _fitted(examples: Examples, seed: int) -> tuple[Float64, float, float]:
    """Return the weights of the evidence and of the prompt, and the bias, of one judged tier."""
    if not examples.evidence.shape[1]:
        theta = _logistic(_inputs(examples, examples.evidence), examples, STRENGTHS[0])
        return theta[:-2], float(theta[-2]), float(theta[-1])
    fold = folds_of(examples.row, seed, INNER_FOLDS)
    losses = dict.fromkeys(STRENGTHS, 0.0)
    for number in np.unique(fold):
        train, test = examples.take(fold != number), examples.take(fold == number)
        inputs, seen = _inputs(train, train.evidence), _inputs(train, test.evidence, test.prompt)
        weights: Float64 | None = None
        for strength in STRENGTHS:
            weights = _logistic(inputs, train, strength, weights)
            losses[strength] += float(test.weight @ _log_loss(seen @ weights, test.labels[:, 0]))
    theta = _logistic(_inputs(examples, examples.evidence), examples, min(STRENGTHS, key=losses.__getitem__))
    return theta[:-2], float(theta[-2]), float(theta[-1])


def _inputs(train: Examples, evidence: Float, prompt: Float | None = None) -> Float64:
    """Return inputs [n, e + 2]: `evidence` standardised as that of `train`, the prompt's logit and 1."""
    x = standardised(evidence, *_moments(train.evidence))
    return np.column_stack([x, train.prompt if prompt is None else prompt, np.ones(len(x))]).astype(np.float64)


def _logistic(inputs: Float64, examples: Examples, strength: float, start: Float64 | None = None) -> Float64:
    """Return the coefficients [e + 2] that minimise the weighted cross-entropy of `examples` plus `|coef|^2 / (2
    strength)`, starting from `start`."""
    label, weight = examples.labels[:, 0], examples.weight
    penalty = np.append(np.full(inputs.shape[1] - 2, 1 / strength), (PROMPT_PRECISION, BIAS_PRECISION))
    prior = np.zeros(inputs.shape[1])
    prior[-2] = 1.0
    theta = (prior if start is None else start).copy()
    for _ in range(NEWTON_STEPS):
        p = 1 / (1 + np.exp(-np.clip(inputs @ theta, -30, 30)))
        gradient = inputs.T @ (weight * (p - label)) + penalty * (theta - prior)
        hessian = (inputs.T * (weight * p * (1 - p))) @ inputs + np.diag(penalty)
        step = np.linalg.solve(hessian, gradient)
        # Far from the optimum a full step may overshoot.
        theta -= step / max(1.0, float(np.abs(step).max()))
        if np.abs(step).max() < 1e-6:
            break
    return theta


def _moments(evidence: Float) -> tuple[Float, Float]:
    return evidence.mean(axis=0), np.maximum(evidence.std(axis=0), MIN_SCALE)


def _log_loss(z: Float64, label: Float64) -> Float64:
    loss: Float64 = np.logaddexp(0.0, z) - label * z
    return loss


PENALTIES = (1.0, 10.0, 100.0, 1000.0)


def fit_lengths(common: dict[int, Outcomes], encoder: str, seed: int) -> AnswerLength:
    """Fit the answer lengths of every tier in `common`, whose rows are aligned."""
    any_tier = next(iter(common.values()))
    tokens = np.stack([outcomes.answer_tokens for outcomes in common.values()], axis=1).astype(np.float64)
    mean = any_tier.features.mean(axis=0)
    scale = np.maximum(any_tier.features.std(axis=0), MIN_SCALE)
    x = length_design(any_tier.features, any_tier.embedding, mean, scale).astype(np.float64)
    y = np.log1p(tokens)
    fold = folds_of(any_tier.row, seed)
    penalty = min(PENALTIES, key=lambda candidate: float(((_unseen(x, y, fold, candidate) - y) ** 2).mean()))
    coef, bias = _ridge(x, y, penalty)
    # From out-of-fold predictions, because in-sample residuals are too small.
    smear = np.exp(y - _unseen(x, y, fold, penalty)).mean(axis=0)
    bounds = np.stack([tokens.min(axis=0), tokens.max(axis=0)])
    return AnswerLength(
        encoder,
        list(common),
        mean=mean.astype(np.float32),
        scale=scale.astype(np.float32),
        coef=coef.astype(np.float32),
        bias=bias.astype(np.float32),
        smear=smear.astype(np.float32),
        bounds=bounds.astype(np.float32),
    )


def _ridge(x: Float64, y: Float64, penalty: float) -> tuple[Float64, Float64]:
    """Return coefficients [d, t] and biases [t]; the bias is not penalised."""
    centre, level = x.mean(axis=0), y.mean(axis=0)
    moved = x - centre
    coef = np.linalg.solve(moved.T @ moved + penalty * np.eye(x.shape[1]), moved.T @ (y - level))
    return coef, level - centre @ coef


def _unseen(x: Float64, y: Float64, fold: npt.NDArray[np.intp], penalty: float) -> Float64:
    """Return out-of-fold predictions [n, t]."""
    predicted = np.empty_like(y)
    for number in np.unique(fold):
        own = fold == number
        if own.all():
            return np.broadcast_to(y.mean(axis=0), y.shape)
        coef, bias = _ridge(x[~own], y[~own], penalty)
        predicted[own] = x[own] @ coef + bias
    return predicted
