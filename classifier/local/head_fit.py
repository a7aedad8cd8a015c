"""Fit the head over all keys of a catalogue (`classifier.model.learned`), each tenant within its bound.

Logistic regression of the labels with the prior's logit as offset and ridge penalties, L_c of the classes' weights and
L of the others. One tenant moves a probability of it by at most `LABELS_BOUND`, whatever and however many its labels:
with each weight in units of 1 / sqrt(its penalty) the inputs have at most the squared length B = 1 / L_c + 2 / L, and
scores lie in [0, 1], so the gradient of labels of total weight W is at most W sqrt(B) long. The other terms are convex
with modulus 1: without the tenant the weights move by at most W sqrt(B), logits by W B, and probabilities by W B / 4.
Its labels weigh at most W = 4 `LABELS_BOUND` / B.
"""

import numpy as np
import numpy.typing as npt

from classifier.local.cells import LABELS_BOUND, Labels
from classifier.model.learned import CatalogueHead, inputs, prior_logits

Float = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

# Penalty of the weights of the classes, in labels: what ten labels say of a rate of about a half or less.
_CLASS_PENALTY = 2.0
_MOST_STEPS, _ENOUGH = 30, 1e-6


def fit_head(labels: Labels, prior: Float, penalty: float) -> CatalogueHead:
    """Fit on `labels` that are not private; `penalty` is that of the squared weights of embedding and
    features, in labels."""
    known = labels.take(~labels.private)
    given = inputs(known.classes, known.embedding, known.surface).astype(np.float64)
    offset, penalties = prior_logits(known.classes, prior), np.full(given.shape[1], penalty)
    penalties[: known.classes.shape[1]] = _CLASS_PENALTY
    squared_length = 1 / _CLASS_PENALTY + 2 / penalty
    told = known.told * tenant_shares(known, 4 * LABELS_BOUND / squared_length)
    scores = np.clip(np.nan_to_num(known.scores), 0.0, 1.0)
    weights = np.zeros((given.shape[1], prior.shape[1]), np.float32)
    for tier in range(prior.shape[1]):
        seen = told[:, tier] > 0
        if seen.any():
            weights[:, tier] = _logistic(
                given[seen], offset[seen, tier], scores[seen, tier], told[seen, tier], penalties
            )
    return CatalogueHead(prior, weights)


def tenant_shares(labels: Labels, most: float) -> Float:
    """Return [n, tiers - 1]: what scales the weights of each tenant's labels to a sum of at most `most`; 1 without a
    tenant."""
    told = labels.told
    shares = np.ones_like(told)
    for tenant in np.unique(labels.tenant[labels.tenant >= 0]):
        mine = labels.tenant == tenant
        shares[mine] = np.minimum(1.0, most / np.maximum(told[mine].sum(axis=0), 1e-9))
    return shares


def _logistic(given: Float64, offset: Float, scores: Float, told: Float, penalties: Float64) -> Float64:
    """Return the weights that minimise the log loss plus half of the `penalties` times their squares, by Newton's
    method with step halving."""

    def loss(weights: Float64) -> float:
        logits = offset + given @ weights
        whole = told * (np.logaddexp(0.0, logits) - scores * logits)
        return float(whole.sum() + penalties @ weights**2 / 2)

    weights = np.zeros(given.shape[1])
    now = loss(weights)
    for _ in range(_MOST_STEPS):
        p = 1.0 / (1.0 + np.exp(-(offset + given @ weights)))
        slope = given.T @ (told * (p - scores)) + penalties * weights
        curve = (given * (told * p * (1 - p))[:, None]).T @ given
        curve.flat[:: len(weights) + 1] += penalties
        step = np.linalg.solve(curve, slope)
        while (then := loss(weights - step)) > now and np.abs(step).max() > _ENOUGH:
            step /= 2
        weights, now = weights - step, then
        if np.abs(step).max() <= _ENOUGH:
            break
    return weights
