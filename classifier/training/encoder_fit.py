"""Learning the static encoder: vocabulary, latent semantic projection and the word logits, from training turns."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.decomposition import TruncatedSVD

from classifier.encoder import StaticEncoder
from classifier.training.logistic import fit_logistic

Float = npt.NDArray[np.float32]
MIN_TURNS = 3  # a term in fewer turns says nothing about others
WORD_LOGIT_C = 1.0


def fit_encoder(
    tokens: Sequence[Sequence[str]], labels: Float, weights: Float, *, dim: int, max_terms: int, seed: int
) -> StaticEncoder:
    """Fit on training turns only. `labels` [n, heads] in [0, 1], NaN where not observed; `weights` [n]."""
    words, pairs, idf = _vocabulary(tokens, max_terms)
    heads = labels.shape[1]
    rows = len(words) + len(pairs)
    blank = StaticEncoder(
        words=words,
        pairs=pairs,
        idf=idf,
        table=np.zeros((rows, 1), np.float32),
        logit_table=np.zeros((rows, heads), np.float32),
        logit_bias=np.zeros(heads, np.float32),
    )
    matrix = term_matrix(blank, tokens)
    projection = TruncatedSVD(dim, random_state=seed).fit(matrix).components_.T
    coef, bias = np.zeros((rows, heads)), np.zeros(heads)
    for head in range(heads):
        coef[:, head], bias[head] = fit_logistic(matrix, labels[:, head], weights, c=WORD_LOGIT_C)
    fitted = StaticEncoder(
        words=words,
        pairs=pairs,
        idf=idf,
        table=projection.astype(np.float32),
        logit_table=coef.astype(np.float32),
        logit_bias=bias.astype(np.float32),
    )
    # What is trained on must be what is served: the rounded table.
    return StaticEncoder.from_tensors(fitted.tensors())


def term_matrix(encoder: StaticEncoder, tokens: Sequence[Sequence[str]]) -> sp.csr_matrix:
    """The sparse vectors of many turns, [n, terms]."""
    terms = [encoder.terms(t) for t in tokens]
    indptr = np.cumsum([0, *(len(rows) for rows, _ in terms)])
    indices = np.concatenate([rows for rows, _ in terms])
    data = np.concatenate([weights for _, weights in terms])
    return sp.csr_matrix((data, indices, indptr), shape=(len(terms), len(encoder.idf)))


def _vocabulary(tokens: Sequence[Sequence[str]], max_terms: int) -> tuple[list[str], npt.NDArray[np.int32], Float]:
    """The words and word pairs that occur in most turns, at most `max_terms` together, and their idf (smoothed)."""
    turns_with: Counter[tuple[str, ...]] = Counter()
    for t in tokens:
        turns_with.update({(w,) for w in t} | set(pairwise(t)))
    common = sorted((term for term, n in turns_with.items() if n >= MIN_TURNS), key=lambda t: (-turns_with[t], t))
    kept = common[:max_terms]
    # A pair is as rare as its rarer word or rarer, so its words come before it; only ties can break that.
    words = sorted(term[0] for term in kept if len(term) == 1)
    index = {word: i for i, word in enumerate(words)}
    pairs = sorted((index[a], index[b]) for a, b in (t for t in kept if len(t) == 2) if a in index and b in index)
    terms = [*((w,) for w in words), *((words[a], words[b]) for a, b in pairs)]
    n = len(tokens)
    idf = [np.log((1 + n) / (1 + turns_with[term])) + 1 for term in terms]
    return words, np.array(pairs, np.int32).reshape(-1, 2), np.array(idf, np.float32)
