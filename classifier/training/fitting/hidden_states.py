"""Fit a layer on hidden states: their principal directions, and kernel ridge regression of each outcome."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve

from classifier.encoders.hidden_state_encoder import CLIP, KernelLayer, unit

Float = npt.NDArray[np.float32]

# Chosen by cross-validation within train, by AUC within domains; flat within a factor of two.
WIDTH = 256
SHARPNESS = 2.0
ALPHA = 3.0


@dataclass(frozen=True)
class FittedLayer:
    """The layer, and the cross-fitted encodings of the training rows: `embedding` float32 [n, dim] of unit length and
    `logits` float32 [n, heads]."""

    above: KernelLayer
    embedding: Float
    logits: Float


def fit_layer(states: Float, labels: Float, fold: npt.NDArray[np.intp], *, dim: int) -> FittedLayer:
    """Fit on training states [n, hidden]. `labels` [n, heads] in [0, 1], NaN unobserved; `fold` [n] numbers the folds
    of the cross-fitting.

    The directions use no label, so a training row's embedding is like that of a new prompt.
    """
    mean = states.mean(axis=0, dtype=np.float64).astype(np.float32)
    scale = (states.std(axis=0, dtype=np.float64) + 1e-6).astype(np.float32)
    directions = _principal(np.clip((states - mean) / scale, -CLIP, CLIP), WIDTH)
    rates = np.clip(np.nan_to_num(np.nanmean(labels, axis=0), nan=0.5), 0.01, 0.99)
    bias = np.log(rates / (1 - rates)).astype(np.float32)
    blank = KernelLayer(
        mean=mean,
        scale=scale,
        directions=directions,
        support=unit(np.clip((states - mean) / scale, -CLIP, CLIP) @ directions),
        weights=np.zeros(labels.shape, np.float32),
        bias=bias,
        sharpness=SHARPNESS,
        dim=min(dim, directions.shape[1]),
    )
    coordinates = blank.coordinates(states)
    kernel = blank.similarity(blank.support)
    # The slope of the logit at the base rate converts a regression of outcomes to one of logits.
    pulls = ((labels - rates) / (rates * (1 - rates))).astype(np.float32)
    logits = np.tile(bias, (len(states), 1))
    for together in observed_together(labels):
        known = ~np.isnan(labels[:, together[0]])
        blank.weights[np.ix_(known, together)] = _dual(kernel, pulls[:, together], np.flatnonzero(known))
        for k in np.unique(fold):
            others, mine = np.flatnonzero(known & (fold != k)), np.flatnonzero(fold == k)
            logits[np.ix_(mine, together)] += kernel[np.ix_(mine, others)] @ _dual(kernel, pulls[:, together], others)
    return FittedLayer(blank, blank.embeddings(coordinates), logits)


def _dual(kernel: Float, targets: Float, rows: npt.NDArray[np.intp]) -> Float:
    """Return (K + alpha)^-1 targets over `rows`, float32 [rows, t]."""
    if not len(rows):
        return np.zeros((0, targets.shape[1]), np.float32)
    regularised = kernel[np.ix_(rows, rows)]
    regularised[np.diag_indices(len(rows))] += np.float32(ALPHA)
    factor = cho_factor(regularised, lower=True, overwrite_a=True, check_finite=False)
    dual: Float = cho_solve(factor, targets[rows], check_finite=False)
    return dual


def observed_together(labels: Float) -> list[npt.NDArray[np.intp]]:
    """Return the heads in groups observed on the same rows; heads without observations are in none."""
    patterns, group = np.unique(np.isnan(labels), axis=1, return_inverse=True)
    return [np.flatnonzero(group == g) for g in range(patterns.shape[1]) if not patterns[:, g].all()]


def _principal(standard: Float, width: int) -> Float:
    """Return principal directions [hidden, at most width] of standardised states; signs are fixed, so that equal states
    give equal directions."""
    products = standard.T.astype(np.float64) @ standard
    _, vectors = np.linalg.eigh(products)
    directions = vectors[:, ::-1][:, :width]
    signs = np.sign(directions[np.abs(directions).argmax(axis=0), np.arange(directions.shape[1])])
    return np.ascontiguousarray(directions * signs, np.float32)
