"""Fit the static encoder: its vocabulary, a table distilled from a teacher's vectors, the logits and the trees.

And fit a layer on hidden states: their principal directions, and kernel ridge regression of each outcome.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.linalg import cho_factor, cho_solve
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.kernel_ridge import KernelRidge

from classifier.encoders.boosted_trees import Trees
from classifier.encoders.hidden_state_encoder import CLIP, KernelLayer, unit
from classifier.encoders.static_encoder import StaticEncoder, quantise
from classifier.training.fitting.trees import ROUNDS, fit_trees, scaled

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
    """Fit on training states [n, hidden]. `labels` [n, heads] in [0, 1], NaN unobserved; `fold` [n] numbers the folds.

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


MIN_TURNS = 2  # the fewest turns of a term: a term in one turn does not generalise
# Chosen by cross-validation within train and valid.
TABLE_ALPHA = 0.5
LOGIT_ALPHA = 5.0
TREE_SHARE = 0.6  # the trees' share of the logits' distance from the base rate; the words have the rest
# A teacher's share of a softened label, by cross-validation within train and valid; a third to two thirds are as good.
TEACHER_SHARE = 0.5
FOLDS = 5


@dataclass(frozen=True)
class FittedEncoder:
    """The encoder, and the cross-fitted encodings of the training turns: `embedding` float32 [n, dim] and `word_logits`
    float32 [n, heads]."""

    encoder: StaticEncoder
    embedding: Float
    word_logits: Float


def fit_encoder(
    tokens: Sequence[Sequence[str]],
    features: Float,
    labels: Float,
    fold: npt.NDArray[np.intp],
    *,
    teacher: Float | None,
    dim: int,
    max_terms: int,
    rounds: int = ROUNDS,
    seed: int,
) -> FittedEncoder:
    """Fit on training turns: their tokens and surface `features` [n, f]. `labels` [n, heads] in [0, 1], NaN unobserved;
    `fold` [n] numbers 0 to FOLDS - 1, equal for turns that share a passage.

    `teacher` [n, any] are vectors of a larger model for the same turns, NaN where missing: the table is the ridge
    regression of their `dim` whitened principal components on the sparse vectors, and the labels for words and trees
    are softened by it. Without a teacher the table regresses the components of the sparse vectors themselves (latent
    semantic analysis).
    """
    words, pairs, idf = _vocabulary(tokens, max_terms)
    blank = StaticEncoder(
        words=words,
        pairs=pairs,
        idf=idf,
        table=quantise(np.zeros((len(idf), 1), np.float32)),
        logit_table=np.zeros((len(idf), 1), np.float32),
        logit_bias=np.zeros(1, np.float32),
        trees=Trees.none(features=features.shape[1], heads=1),
    )
    matrix = term_matrix(blank, tokens)
    gram = (matrix @ matrix.T).toarray()
    targets = _components(matrix if teacher is None else teacher, dim, seed)
    table, embedding = _regress(matrix, gram, targets, fold, TABLE_ALPHA)
    labels = labels if teacher is None else _taught_labels(labels, teacher, fold)
    trees, of_trees = fit_trees(features, labels, fold, rounds=rounds, seed=seed)
    rates = np.clip(np.nan_to_num(np.nanmean(labels, axis=0), nan=0.5), 0.01, 0.99)
    bias = np.log(rates / (1 - rates)).astype(np.float32)
    logit_table, word_logits = np.zeros((len(idf), len(bias)), np.float32), bias + TREE_SHARE * of_trees
    # The slope of the logit at the base rate converts a regression of outcomes to one of logits.
    pulls = ((labels - rates) / (rates * (1 - rates))).astype(np.float32)
    for together in _observed_together(labels):
        logit_table[:, together], pulled = _regress(matrix, gram, pulls[:, together], fold, LOGIT_ALPHA)
        word_logits[:, together] += (1 - TREE_SHARE) * pulled
    logit_table *= 1 - TREE_SHARE
    trees = scaled(trees, TREE_SHARE)
    fitted = StaticEncoder(
        words=words, pairs=pairs, idf=idf, table=quantise(table), logit_table=logit_table, logit_bias=bias, trees=trees
    )
    length = np.linalg.norm(embedding, axis=1, keepdims=True)
    # Train on what is served: the rounded table.
    return FittedEncoder(
        StaticEncoder.from_tensors(fitted.tensors()), embedding / np.maximum(length, 1e-6), word_logits
    )


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
        known = ~np.isnan(vectors).any(axis=1)
        components = np.full((len(vectors), dim), np.nan, np.float32)
        components[known] = PCA(dim, whiten=True, svd_solver="full").fit_transform(vectors[known])
    scaled: Float = (components / np.nanstd(components)).astype(np.float32)
    return scaled


def _regress(
    matrix: sp.csr_matrix, gram: Float, targets: Float, fold: npt.NDArray[np.intp], alpha: float
) -> tuple[Float, Float]:
    """Fit a ridge regression of `targets` [n, t], without NaN rows, on the sparse vectors; return (table [terms, t],
    out-of-fold predictions [n, t])."""
    known = ~np.isnan(targets).any(axis=1)

    def dual(rows: npt.NDArray[np.intp]) -> Float:
        if not len(rows):
            return np.zeros((0, targets.shape[1]), np.float32)
        ridge = KernelRidge(alpha=alpha, kernel="precomputed").fit(gram[np.ix_(rows, rows)], targets[rows])
        return np.asarray(ridge.dual_coef_, np.float32)

    predicted = np.zeros_like(targets)
    for k in range(FOLDS):
        others, mine = np.flatnonzero(known & (fold != k)), np.flatnonzero(fold == k)
        predicted[mine] = gram[np.ix_(mine, others)] @ dual(others)
    rows = np.flatnonzero(known)
    return matrix[rows].T @ dual(rows), predicted


def _observed_together(labels: Float) -> list[npt.NDArray[np.intp]]:
    """Return the heads in groups observed on the same turns."""
    _, group = np.unique(np.isnan(labels), axis=1, return_inverse=True)
    return [np.flatnonzero(group == g) for g in range(group.max() + 1)]


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


def _taught_labels(labels: Float, states: Float, fold: npt.NDArray[np.intp]) -> Float:
    """Return `labels` [n, heads], each observed one mixed with its probability by a ridge regression on the teacher's
    `states` [n, hidden] that did not see its `fold`. Rows without teacher states (NaN) keep their labels.

    Training on a prompt then also uses what the teacher learned from others (Hinton et al. 2015, "Distilling the
    knowledge in a neural network").
    """
    asked = ~np.isnan(states).any(axis=1)
    if not asked.any():
        return labels
    logits = fit_layer(states[asked], labels[asked], fold[asked], dim=1).logits
    mixed = labels.copy()
    mixed[asked] += TEACHER_SHARE * (1 / (1 + np.exp(-logits)) - labels[asked])
    return mixed
