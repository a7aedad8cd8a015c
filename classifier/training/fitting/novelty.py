"""Fit novelty: the centres and the spread of the known domains, and the distances of held-out prompts."""

import numpy as np
import numpy.typing as npt
from sklearn.cluster import KMeans

from classifier.model.knn_memory import Novelty
from classifier.training.data.encoded_rows import EncodedRows

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
