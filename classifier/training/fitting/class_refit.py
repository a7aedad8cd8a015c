"""Fit what a retraining learns of all prompts (`classifier.model.learned`), each tenant within its bound.

The head over all keys is a logistic regression of the labels with the prior's logit as offset and ridge penalties, L_c
of the classes' weights and L of the others. One tenant moves a probability of it by at most `LABELS_BOUND`, whatever
and however many its labels: with each weight in units of 1 / sqrt(its penalty) the inputs have at most the squared
length B = 1 / L_c + 2 / L, and scores lie in [0, 1], so the gradient of labels of total weight W is at most W sqrt(B)
long. The other terms are convex with modulus 1: without the tenant the weights move by at most W sqrt(B), logits by
W B, and probabilities by W B / 4. Its labels weigh at most W = 4 `LABELS_BOUND` / B.

The class model is refitted with labels as soft targets. A label of tier t says nothing of a class but by the table T:
P(score y | class c) = T_ct^y (1 - T_ct)^(1 - y). With the model's q_c = P(c | prompt), Bayes gives the soft target
r_c = q_c l_c / sum over k of q_k l_k, l_c the product over the labelled tiers to the power of their weight. The
weights W of the model's linear part minimise

J(W) = - sum over labels of v log(sum over c of q_c(W) l_c) + sum of penalty W^2 / 2,

v a label's weight. Its slope in the logits is v (q - r), that of the cross-entropy with the soft targets of W itself:
at the minimum the model agrees with its own targets (Fisher's identity; expectation-maximisation has the same fixed
points). The table is the catalogue's prior and stays, so that the classes keep their meaning.

That holds for labels without a tenant. The targets of tenants' labels are computed once, by the model after these, and
learned by the cross-entropy with them, a convex problem: one tenant moves a probability of it by at most
`LABELS_BOUND`. With B as above and |q - r| <= sqrt(2), the slope of labels of total weight V is at most V sqrt(2 B)
long. The rest is convex with modulus 1: without the tenant the weights move by at most V sqrt(2 B), logits by
V B sqrt(2), and P = q T, whose slope in the logits is at most sqrt(2) / 4 long for T in [0, 1], by at most V B / 2. So
V is 2 `LABELS_BOUND` over B.
"""

import numpy as np
import numpy.typing as npt

from classifier.local.cells import LABELS_BOUND, Labels
from classifier.model.learned import CatalogueHead, RefittedClasses, class_logits, inputs, prior_logits
from classifier.training.fitting.logistic import minimise

Float = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

# Penalty of the weights of the classes, in labels: what ten labels say of a rate of about a half or less.
_HEAD_CLASS_PENALTY = 2.0
_MOST_STEPS, _ENOUGH = 30, 1e-6


def fit_head(labels: Labels, prior: Float, penalty: float) -> CatalogueHead:
    """Fit on the `labels` that are not private; `penalty`: of squared weights of embedding and features, in labels."""
    public = labels.take(~labels.private)
    design = inputs(public.classes, public.embedding, public.surface).astype(np.float64)
    offset, penalties = prior_logits(public.classes, prior), np.full(design.shape[1], penalty)
    penalties[: public.classes.shape[1]] = _HEAD_CLASS_PENALTY
    squared_length = 1 / _HEAD_CLASS_PENALTY + 2 / penalty
    told = public.told * tenant_shares(public, 4 * LABELS_BOUND / squared_length)
    scores = np.clip(np.nan_to_num(public.scores), 0.0, 1.0)
    weights = np.zeros((design.shape[1], prior.shape[1]), np.float32)
    for tier in range(prior.shape[1]):
        seen = told[:, tier] > 0
        if seen.any():
            weights[:, tier] = _logistic(
                design[seen], offset[seen, tier], scores[seen, tier], told[seen, tier], penalties
            )
    return CatalogueHead(prior, weights)


def tenant_shares(labels: Labels, most: float) -> Float:
    """Return [n, tiers - 1]: factors that scale each tenant's label weights to at most `most`; 1 without tenant."""
    told = labels.told
    shares = np.ones_like(told)
    for tenant in np.unique(labels.tenant[labels.tenant >= 0]):
        mine = labels.tenant == tenant
        shares[mine] = np.minimum(1.0, most / np.maximum(told[mine].sum(axis=0), 1e-9))
    return shares


def _logistic(design: Float64, offset: Float, scores: Float, told: Float, penalties: Float64) -> Float64:
    """Return the weights that minimise the log loss plus half of the `penalties` times their squares, by Newton's
    method with step halving."""

    def loss(weights: Float64) -> float:
        logits = offset + design @ weights
        whole = told * (np.logaddexp(0.0, logits) - scores * logits)
        return float(whole.sum() + penalties @ weights**2 / 2)

    weights = np.zeros(design.shape[1])
    now = loss(weights)
    for _ in range(_MOST_STEPS):
        p = 1.0 / (1.0 + np.exp(-(offset + design @ weights)))
        slope = design.T @ (told * (p - scores)) + penalties * weights
        curve = (design * (told * p * (1 - p))[:, None]).T @ design
        curve.flat[:: len(weights) + 1] += penalties
        step = np.linalg.solve(curve, slope)
        while (then := loss(weights - step)) > now and np.abs(step).max() > _ENOUGH:
            step /= 2
        weights, now = weights - step, then
        if np.abs(step).max() <= _ENOUGH:
            break
    return weights


# Penalty of the weights of the shipped classes, in labels.
_CLASS_PENALTY = 1.0
# The table's probabilities in Bayes' rule, so that one label excludes no class.
_LEAST, _MOST = 0.01, 0.99


def fit_classes(labels: Labels, table: Float, penalty: float) -> RefittedClasses:
    """Fit on `labels` that are not private over `table` [4, tiers - 1], P(as good) by class; `penalty` is that of the
    squared weights of embedding and features, in labels. Deterministic."""
    public = labels.take(~labels.private)
    design = inputs(public.classes, public.embedding, public.surface).astype(np.float64)
    start, said = class_logits(public.classes).astype(np.float64), log_likelihoods(public, table)
    penalties = np.full((design.shape[1], 1), penalty)
    penalties[: public.classes.shape[1]] = _CLASS_PENALTY
    own = public.tenant >= 0
    weights, told = np.zeros((design.shape[1], len(table))), row_weights(public)
    if (told[~own] > 0).any():
        weights = _at_minimum(design[~own], start[~own], said[~own], told[~own], penalties)
    if (told[own] > 0).any():
        share = _shares(public.tenant[own], told[own], tenant_bound(penalty))
        before = start[own] + design[own] @ weights
        targets = soft_targets(before, said[own])
        weights = weights + _nearest(design[own], before, targets, told[own] * share, penalties)
    return RefittedClasses(np.clip(table, 0.0, 1.0), weights.astype(np.float32))


def tenant_bound(penalty: float) -> float:
    """Return the most weight of one tenant's labels."""
    return 2 * LABELS_BOUND / (1 / _CLASS_PENALTY + 2 / penalty)


def row_weights(labels: Labels) -> Float64:
    """Return [n]: the weight of each row, that of its weightiest label."""
    weights: Float64 = labels.told.max(axis=1, initial=0.0).astype(np.float64)
    return weights


def log_likelihoods(labels: Labels, table: Float) -> Float64:
    """Return [n, 4]: the logarithm of what each class says of a row's labels, each to the power of its weight relative
    to the row's."""
    p = np.clip(table, _LEAST, _MOST).astype(np.float64)
    share = labels.told / np.maximum(row_weights(labels), 1e-9)[:, None]
    scores = np.clip(np.nan_to_num(labels.scores), 0.0, 1.0)
    logs: Float64 = (share * scores) @ np.log(p).T + (share * (1 - scores)) @ np.log(1 - p).T
    return logs


def soft_targets(logits: Float64, said: Float64) -> Float64:
    """Return P of the classes [n, 4] by Bayes' rule, from the model's `logits` [n, 4] and `log_likelihoods`."""
    targets: Float64 = np.exp(_normalised(logits + said))
    return targets


def _shares(tenant: npt.NDArray[np.int32], told: Float64, most: float) -> Float64:
    """Return [n]: what scales the weights `told` [n] of each tenant's rows to a sum of at most `most`."""
    whole = np.bincount(tenant, told)
    shares: Float64 = np.minimum(1.0, most / np.maximum(whole, 1e-9))[tenant]
    return shares


def _at_minimum(design: Float64, start: Float64, said: Float64, told: Float64, penalties: Float64) -> Float64:
    """Return the weights [inputs, 4] at a minimum of J, from no weights on; `start` [n, 4] are the logits there."""

    def loss(flat: Float64) -> tuple[float, Float64]:
        weights = flat.reshape(len(penalties), -1)
        log_q = _normalised(start + design @ weights)
        log_r = _normalised(log_q + said)
        # log(sum of q l) is log q + log l - log r of any class.
        likely = (log_q + said - log_r)[:, 0]
        slope = design.T @ (told[:, None] * (np.exp(log_q) - np.exp(log_r))) + penalties * weights
        return float((penalties * weights**2).sum() / 2 - told @ likely), slope.ravel()

    return minimise(loss, np.zeros(len(penalties) * start.shape[1])).reshape(len(penalties), -1)


def _nearest(design: Float64, start: Float64, targets: Float64, told: Float64, penalties: Float64) -> Float64:
    """Return the weights [inputs, 4] that minimise the cross-entropy with `targets` [n, 4] plus the penalty."""

    def loss(flat: Float64) -> tuple[float, Float64]:
        weights = flat.reshape(len(penalties), -1)
        log_q = _normalised(start + design @ weights)
        slope = design.T @ (told[:, None] * (np.exp(log_q) - targets)) + penalties * weights
        cross = -(told @ (targets * log_q).sum(axis=1))
        return float((penalties * weights**2).sum() / 2 + cross), slope.ravel()

    return minimise(loss, np.zeros(len(penalties) * start.shape[1])).reshape(len(penalties), -1)


def _normalised(logits: Float64) -> Float64:
    """Return log P [n, 4] of `logits`."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_p: Float64 = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return log_p
