"""Fit the static encoder: its vocabulary, and a table distilled from a teacher's vectors.

And fit a layer on hidden states: their principal directions.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.kernel_ridge import KernelRidge

from classifier.encoders.hidden_state_encoder import PrincipalDirections, standardised
from classifier.encoders.static_encoder import StaticEncoder, quantise

Float = npt.NDArray[np.float32]


def fit_directions(states: Float, *, dim: int) -> PrincipalDirections:
    """Fit on training states [n, hidden]: the first `dim` directions of their variance."""
    mean = states.mean(axis=0, dtype=np.float64).astype(np.float32)
    scale = (states.std(axis=0, dtype=np.float64) + 1e-6).astype(np.float32)
    return PrincipalDirections(mean, scale, principal_directions(standardised(states, mean, scale), dim))


def principal_directions(centred: Float, dim: int) -> Float:
    """Return principal directions [hidden, at most dim] of centred states [n, hidden]; signs are fixed, so that equal
    states give equal directions."""
    products = centred.T.astype(np.float64) @ centred
    _, vectors = np.linalg.eigh(products)
    directions = vectors[:, ::-1][:, :dim]
    signs = np.sign(directions[np.abs(directions).argmax(axis=0), np.arange(directions.shape[1])])
    return np.ascontiguousarray(directions * signs, np.float32)


MIN_TURNS = 2  # the fewest turns of a term: a term in one turn does not generalise
# Chosen by cross-validation within train and valid.
TABLE_ALPHA = 0.5


def fit_encoder(
    tokens: Sequence[Sequence[str]], *, teacher: Float | None, dim: int, max_terms: int, seed: int
) -> StaticEncoder:
    """Fit on the tokens of training turns.

    `teacher` [n, any] are vectors of a larger model for the same turns, NaN where missing: the table is the ridge
    regression of their `dim` whitened principal components on the sparse vectors. Without a teacher the table regresses
    the components of the sparse vectors themselves (latent semantic analysis).
    """
    words, pairs, idf = _vocabulary(tokens, max_terms)
    blank = StaticEncoder(words=words, pairs=pairs, idf=idf, table=quantise(np.zeros((len(idf), 1), np.float32)))
    matrix = term_matrix(blank, tokens)
    table = _regressed(matrix, _components(matrix if teacher is None else teacher, dim, seed))
    return StaticEncoder(words=words, pairs=pairs, idf=idf, table=quantise(table))


def term_matrix(encoder: StaticEncoder, tokens: Sequence[Sequence[str]]) -> sp.csr_matrix:
    """Return the sparse vectors of many turns, float32 [n, terms]."""
    terms = [encoder.terms(t) for t in tokens]
    indptr = np.cumsum([0, *(len(rows) for rows, _ in terms)])
    indices = np.concatenate([rows for rows, _ in terms])
    data = np.concatenate([weights for _, weights in terms])
    return sp.csr_matrix((data, indices, indptr), shape=(len(terms), len(encoder.idf)))


def _components(vectors: Any, dim: int, seed: int) -> Float:
    """Return principal components [n, dim] of dense vectors, or singular ones of sparse vectors, scaled to unit
    variance together."""
    if sp.issparse(vectors):
        components = TruncatedSVD(dim, random_state=seed).fit_transform(vectors)
    else:
        complete = ~np.isnan(vectors).any(axis=1)
        components = np.full((len(vectors), dim), np.nan, np.float32)
        components[complete] = PCA(dim, whiten=True, svd_solver="full").fit_transform(vectors[complete])
    scaled: Float = (components / np.nanstd(components)).astype(np.float32)
    return scaled


def _regressed(matrix: sp.csr_matrix, targets: Float) -> Float:
    """Return the table [terms, t] of a ridge regression of `targets` [n, t] on the sparse vectors, without rows of
    NaN."""
    observed = matrix[~np.isnan(targets).any(axis=1)]
    if not observed.shape[0]:
        return np.zeros((matrix.shape[1], targets.shape[1]), np.float32)
    ridge = KernelRidge(alpha=TABLE_ALPHA, kernel="precomputed")
    ridge.fit((observed @ observed.T).toarray(), targets[~np.isnan(targets).any(axis=1)])
    table: Float = observed.T @ np.asarray(ridge.dual_coef_, np.float32)
    return table


def _vocabulary(tokens: Sequence[Sequence[str]], max_terms: int) -> tuple[list[str], npt.NDArray[np.int32], Float]:
    """Return the words and word pairs that occur in most turns, `max_terms` in all, and their idf (smoothed)."""
    turns_with: Counter[tuple[str, ...]] = Counter()
    for t in tokens:
        turns_with.update({(w,) for w in t} | set(pairwise(t)))
    common = sorted((term for term, n in turns_with.items() if n >= MIN_TURNS), key=lambda t: (-turns_with[t], t))
    kept = common[:max_terms]
    # A pair is at least as rare as its rarer word, so its words come before it; only ties can break that.
    words = sorted(term[0] for term in kept if len(term) == 1)
    index = {word: i for i, word in enumerate(words)}
    pairs = sorted((index[a], index[b]) for a, b in (t for t in kept if len(t) == 2) if a in index and b in index)
    terms = [*((w,) for w in words), *((words[a], words[b]) for a, b in pairs)]
    n = len(tokens)
    idf = [np.log((1 + n) / (1 + turns_with[term])) + 1 for term in terms]
    return words, np.array(pairs, np.int32).reshape(-1, 2), np.array(idf, np.float32)
