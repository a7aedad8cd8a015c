"""Learning what hidden states say: a projection for the neighbourhood, and a linear layer for each outcome."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from classifier.pooled_projection import PooledProjection
from classifier.training.logistic import fit_logistic

Float = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

# Chosen by cross-validation inside train.
LOGIT_C = 0.001
CLIP = 5.0  # standard deviations, while fitting


@dataclass(frozen=True)
class FittedProjection:
    """The layers above the states, and the training rows as they would have encoded them had they not been fitted on
    them: `embedding` float32 [n, dim] of unit length and `word_logits` float32 [n, heads], cross-fitted."""

    above: PooledProjection
    embedding: Float
    word_logits: Float


def fit_projection(
    states: Float, labels: Float, fold: npt.NDArray[np.intp], *, dim: int, c: float = LOGIT_C
) -> FittedProjection:
    """Fit on training states [n, hidden] alone. `labels` [n, heads] in [0, 1], NaN where not observed; `fold` [n]
    numbers the folds of the cross-fitting.

    Logits: logistic regression on the standardised states. Embedding: their `dim` principal directions; it knows no
    label, so that a row's neighbourhood is that of a prompt which was not trained on.
    """
    mean, scale = states.mean(axis=0, dtype=np.float64), states.std(axis=0, dtype=np.float64) + 1e-6
    standard = np.clip((states - mean) / scale, -CLIP, CLIP)
    coef, bias = _logistic(standard, labels, c)
    logits = np.empty(labels.shape, np.float32)
    for k in np.unique(fold):
        others, mine = fold != k, fold == k
        weight, shift = _logistic(standard[others], labels[others], c)
        logits[mine] = standard[mine] @ weight + shift
    above = PooledProjection(
        mean=mean.astype(np.float32),
        projection=(_principal(standard, dim) / scale[:, None]).astype(np.float32),
        head_weight=(coef / scale[:, None]).astype(np.float32),
        head_bias=(bias - (mean / scale) @ coef).astype(np.float32),
    )
    embedding = np.stack([one.embedding for one in above.encodings(states)])
    return FittedProjection(above, embedding, logits)


def _logistic(x: Float64, labels: Float, c: float) -> tuple[Float64, Float64]:
    """(coef [hidden, heads], bias [heads])."""
    fits = [fit_logistic(x, labels[:, head], np.ones(len(x)), c=c) for head in range(labels.shape[1])]
    return np.stack([coef for coef, _ in fits], axis=1), np.array([bias for _, bias in fits])


def _principal(standard: Float64, dim: int) -> Float64:
    """Principal directions [hidden, at most dim] of standardised states; signs fixed, so that equal states give equal
    projections."""
    _, vectors = np.linalg.eigh(standard.T @ standard)
    directions = vectors[:, ::-1][:, :dim]
    signs = np.sign(directions[np.abs(directions).argmax(axis=0), np.arange(directions.shape[1])])
    projection: Float64 = directions * signs
    return projection
