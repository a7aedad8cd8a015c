"""Fits novelty: the centres and the spread of the known domains, and how far held-out prompts of theirs lie."""

import numpy as np
import numpy.typing as npt
from sklearn.cluster import KMeans

from classifier.model.novelty import Novelty
from classifier.training.data.encoded_rows import EncodedRows

Float64 = npt.NDArray[np.float64]

# Of the mean variance, added to every direction. From a hundredth to the whole of it the order of prompts by
# cross-validation over domains hardly changes.
RIDGE = 0.01
# Fewer prompts have no centre that can be told.
MIN_PROMPTS = 10
# Prompts without a domain, as retraining brings them, are as many kinds as there are so many of them, up to a bound
# that keeps decisions quick. A new domain is a few dozen prompts among hundreds when it first comes to be retrained on:
# in fewer kinds they would share a centre with prompts of other domains, and go on being novel.
PROMPTS_PER_KIND, MOST_KINDS = 15, 64


def fit_novelty(rows: EncodedRows, *, seed: int) -> Novelty | None:
    """From rows that are not held; those that are held (all, where none is) say what distance is usual.

    None where the rows are too few for their dimensions, or of one domain: then nothing can be told of others.
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
    """The domain of every row; rows of none fall into clusters of their own, numbered below 0."""
    kind = train.group.astype(np.int64)
    unnamed = np.flatnonzero(kind < 0)
    clusters = min(-(-len(unnamed) // PROMPTS_PER_KIND), MOST_KINDS)
    if clusters > 1:
        found = KMeans(clusters, n_init=1, random_state=seed).fit_predict(train.embedding[unnamed].astype(np.float64))
        kind[unnamed] = -1 - found
    return kind


def _precision(deviations: Float64) -> Float64:
    """The inverse of the ridged covariance [d, d] of `deviations` [n, d]."""
    covariance = deviations.T @ deviations / len(deviations)
    ridge = max(RIDGE * float(np.trace(covariance)) / len(covariance), 1e-9)
    return np.linalg.inv(covariance + ridge * np.eye(len(covariance))).astype(np.float64)
