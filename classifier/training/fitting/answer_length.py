"""Fit answer lengths: ridge regression of log(1 + tokens) per tier, with a penalty chosen by cross-validation."""

import numpy as np
import numpy.typing as npt

from classifier.model.answer_length import AnswerLength, length_design
from classifier.training.data.outcome_folder import Outcomes
from classifier.training.fitting.probes import MIN_SCALE, folds_of

PENALTIES = (1.0, 10.0, 100.0, 1000.0)

Float64 = npt.NDArray[np.float64]


def fit_lengths(common: dict[int, Outcomes], encoder: str, seed: int) -> AnswerLength:
    """Fit the answer lengths of every tier in `common`, whose rows are aligned."""
    any_tier = next(iter(common.values()))
    tokens = np.stack([outcomes.answer_tokens for outcomes in common.values()], axis=1).astype(np.float64)
    mean = any_tier.features.mean(axis=0)
    scale = np.maximum(any_tier.features.std(axis=0), MIN_SCALE)
    x = length_design(any_tier.features, any_tier.embedding, mean, scale).astype(np.float64)
    y = np.log1p(tokens)
    fold = folds_of(any_tier.row, seed)
    penalty = min(PENALTIES, key=lambda one: float(((_unseen(x, y, fold, one) - y) ** 2).mean()))
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
