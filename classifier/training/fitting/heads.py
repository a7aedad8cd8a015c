"""Fit everything above the frozen encoder: the kNN memory, the linear heads, their calibration, and novelty.

Novelty needs the centres and the spread of the known domains, and the distances of held-out prompts.
"""

import numpy as np
import numpy.typing as npt
from sklearn.cluster import KMeans

from classifier.model.knn_memory import Memory, Novelty
from classifier.model.outcome_model import Heads
from classifier.training.data.encoded_rows import EncodedRows
from classifier.training.fitting.logistic import fit_logistic

Float64 = npt.NDArray[np.float64]

# Share of the mean variance added to every direction. From a hundredth to the whole of it the order of prompts by
# cross-validation over domains hardly changes.
RIDGE = 0.01
# With fewer prompts the centre of a domain cannot be estimated.
MIN_PROMPTS = 10
# Prompts without a domain, as in retraining, are clustered, one cluster per this many prompts, up to a bound that
# keeps decisions fast. A new domain is a few dozen prompts among hundreds when it is first retrained on: with fewer
# clusters they would share a centre with prompts of other domains, and would stay novel.
PROMPTS_PER_KIND, MOST_KINDS = 15, 64


def fit_novelty(rows: EncodedRows, *, seed: int) -> Novelty | None:
    """Fit on rows that are not held out; held-out rows (or all, without any) give the usual distances.

    None if the rows are too few for their dimensions, or of one domain: then other domains cannot be detected.
    """
    train, known = rows.take(~rows.held), rows.take(rows.held) if rows.held.any() else rows
    vectors = train.embedding.astype(np.float64)
    kind = _kinds(train, seed)
    kinds, counts = np.unique(kind, return_counts=True)
    kinds = kinds[counts >= MIN_PROMPTS]
    some = vectors.any(axis=1) & np.isin(kind, kinds)
    vectors, kind = vectors[some], kind[some]
    if len(kinds) < 2 or len(vectors) < 2 * vectors.shape[1]:
        return None
    centres = np.stack([vectors[kind == k].mean(axis=0) for k in kinds])
    within = _precision(vectors - centres[np.searchsorted(kinds, kind)])
    middle = vectors.mean(axis=0)
    overall = _precision(vectors - middle)
    # (v - c)' W (v - c) - (v - m)' O (v - m), sorted by powers of v; the matrices are symmetric.
    linear = 2 * (middle @ overall - centres @ within)
    constant = np.einsum("kd,kd->k", centres @ within, centres) - middle @ overall @ middle
    quadratic, linear, constant = (part.astype(np.float32) for part in (within - overall, linear, constant))
    unsorted = Novelty(quadratic, linear, constant, np.zeros(1, np.float32))
    usual = known.embedding[known.embedding.any(axis=1)]
    return Novelty(quadratic, linear, constant, np.sort(unsorted.distance(usual))) if len(usual) else None


def _kinds(train: EncodedRows, seed: int) -> npt.NDArray[np.int64]:
    """Return the domain of every row; rows without one are clustered, with numbers below 0."""
    kind = train.group.astype(np.int64)
    unnamed = np.flatnonzero(kind < 0)
    clusters = min(-(-len(unnamed) // PROMPTS_PER_KIND), MOST_KINDS)
    if clusters > 1:
        found = KMeans(clusters, n_init=1, random_state=seed).fit_predict(train.embedding[unnamed].astype(np.float64))
        kind[unnamed] = -1 - found
    return kind


def _precision(deviations: Float64) -> Float64:
    """Return the inverse of the ridged covariance [d, d] of `deviations` [n, d]."""
    covariance = deviations.T @ deviations / len(deviations)
    ridge = max(RIDGE * float(np.trace(covariance)) / len(covariance), 1e-9)
    return np.linalg.inv(covariance + ridge * np.eye(len(covariance))).astype(np.float64)


Float = npt.NDArray[np.float32]

# Chosen by cross-validation within train and valid, by log loss, for the outcome with most rows; it is flat within
# a factor of three. The penalty *per row* is the same for all: an outcome seen on a fifth of the rows must not be held
# five times closer to its prior.
HEAD_C = 0.001
MOST_FREEDOM = 10.0  # times HEAD_C: a rarely observed outcome has to stay near its prior
CALIBRATION_C = 0.1
# The embedding has unit length and the features are standardised; this balances the penalty on both. The word and
# neighbourhood logits each summarise a whole model.
EMBEDDING_SCALE = 0.25
OPINION_SCALE = 0.5
MEMORY_ROWS = 2048


def fit_heads(rows: EncodedRows, *, seed: int) -> tuple[Heads, Memory]:
    """Fit heads and memory on encoded rows: rows not held out train, held-out rows calibrate. Deterministic."""
    train, held = rows.take(~rows.held), rows.take(rows.held)
    base_rates = _base_rates(train)
    chosen = remembered(train, seed=seed)
    novelty = fit_novelty(rows, seed=seed)
    memory = Memory.build(train.embedding[chosen], train.labels[chosen], train.weights[chosen], base_rates, novelty)
    own_rows = np.full(len(train), -1)
    own_rows[chosen] = np.arange(len(chosen))
    nearby = memory.look_up(train.embedding, own_rows).logits
    mean, scale = _standards(train, nearby, base_rates)
    heads = train.labels.shape[1]
    coef, bias = np.zeros((len(mean), heads)), np.zeros(heads)
    design = _design(Heads(mean, scale, _f32(coef), _f32(bias)), train, nearby)
    freedom = _freedom(train)
    for head in range(heads):
        # The prior of a head is the word logit of its own outcome.
        prior = np.zeros(len(mean))
        prior[len(mean) - 2 * heads + head] = OPINION_SCALE
        c = HEAD_C * float(freedom[head])
        coef[:, head], bias[head] = fit_logistic(design, train.labels[:, head], train.weights, c=c, centre=prior)
    unfitted = Heads(mean, scale, _f32(coef), _f32(bias))
    return (_calibrated(unfitted, held, memory) if len(held) else unfitted), memory


def remembered(train: EncodedRows, *, seed: int) -> npt.NDArray[np.intp]:
    """Return the training rows that the memory keeps, ascending: rows with every outcome first, but at most half."""
    order = np.random.default_rng(seed).permutation(len(train))
    complete = np.asarray(~np.isnan(train.labels).any(axis=1))
    kinds = [order[complete[order]], order[~complete[order]]]
    chosen: list[npt.NDArray[np.intp]] = []
    room = min(MEMORY_ROWS, len(train))
    for i, kind in enumerate(kinds):
        later = sum(len(k) for k in kinds[i + 1 :])
        take = min(len(kind), max(room // 2, room - later))
        chosen.append(kind[:take])
        room -= take
    return np.sort(np.concatenate(chosen))


def _standards(train: EncodedRows, nearby: Float, base_rates: Float) -> tuple[Float, Float]:
    """Return mean and scale of the heads' inputs."""
    base = np.log(base_rates / (1 - base_rates))
    dim, heads = train.embedding.shape[1], len(base)
    mean = np.concatenate([train.features.mean(axis=0), np.zeros(dim), base, base])
    scale = np.concatenate(
        [train.features.std(axis=0) + 1e-3, np.full(dim, EMBEDDING_SCALE), np.full(2 * heads, OPINION_SCALE)]
    )
    return _f32(mean), _f32(scale)


def _design(heads: Heads, rows: EncodedRows, nearby: Float) -> Float64:
    return heads.design(rows.features, rows.embedding, rows.word_logits, nearby).astype(np.float64)


def _calibrated(heads: Heads, held: EncodedRows, memory: Memory) -> Heads:
    """Return `heads` with each logit's slope and shift fitted on held-out rows (Platt scaling)."""
    logits = _design(heads, held, memory.look_up(held.embedding).logits) @ heads.coef + heads.bias
    slopes, shifts = np.ones(len(heads.bias)), np.zeros(len(heads.bias))
    for head in range(len(heads.bias)):
        labels = held.labels[:, head]
        # Without any label here the fitted shift would be arbitrary.
        if not np.isnan(labels).all():
            slope, shifts[head] = fit_logistic(
                logits[:, head, None], labels, held.weights, c=CALIBRATION_C, centre=np.ones(1)
            )
            slopes[head] = max(float(slope[0]), 0.0)
    return Heads(heads.mean, heads.scale, _f32(heads.coef * slopes), _f32(heads.bias * slopes + shifts))


def _freedom(rows: EncodedRows) -> Float64:
    """Return how much weaker each outcome's penalty is than that of the most observed one, [heads], at least 1."""
    observed = (~np.isnan(rows.labels) * rows.weights[:, None]).sum(axis=0, dtype=np.float64)
    freedom: Float64 = np.minimum(observed.max() / np.maximum(observed, 1e-9), MOST_FREEDOM)
    return freedom


def _base_rates(rows: EncodedRows) -> Float:
    seen = ~np.isnan(rows.labels) * rows.weights[:, None]
    return _f32((np.nansum(rows.labels * rows.weights[:, None], axis=0) + 0.5) / (seen.sum(axis=0) + 1.0))


def _f32(values: npt.NDArray[np.floating]) -> Float:
    return values.astype(np.float32)
