"""Train the complexity model on labelled prompts, with out-of-fold predictions for evaluation."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from classifier.complexity.model import CUTS, ROWS, ComplexityModel, standardised, trigram_rows, word_rows
from classifier.features.routing_input import RoutingInput, routing_input_of_text
from classifier.features.stray_text import tokenise
from classifier.features.surface_features import FEATURE_NAMES
from classifier.model.outcome_model import OutcomeModel, encode_turns
from classifier.training.fitting.logistic import fit_logistic
from classifier.training.fitting.trees import fit_trees

Float = npt.NDArray[np.float32]

# By five-fold cross-validation; flat within a factor of three.
C = 3.0
FOLDS = 5
SURFACE_SCALE, EMBEDDING_SCALE = 0.07, 0.6
ROUNDS = 60
# Features that tell how a prompt is written, not what it asks for: the model has no weights and no splits for them.
OF_FORM = [
    FEATURE_NAMES.index(name)
    for name in ("log_lines", "entity_count", "entity_share", "share_capitals", "option_capitals", "stem_capitals")
]


class LabelledPrompt(msgspec.Struct, frozen=True):
    """A prompt with its raters' classes, 1 to 4, and the tiers that they accept. Prompts of a `group` ask for the same
    in other words or languages.
    """

    prompt: str
    classes: list[int]
    range: tuple[int, int] | None = None
    lang: str = "en"
    group: str | None = None
    kind: str = ""
    """How a prompt of the group relates to the others."""
    weight: float = 1.0


class Encoded(NamedTuple):
    """Prompts as the model reads them: n-grams, a row for each, `features` [n, f] and `embedding` [n, d]."""

    prompts: list[RoutingInput]
    grams: sp.csr_matrix
    features: Float
    embedding: Float


def fit_complexity(rows: Sequence[LabelledPrompt], outcome_model: OutcomeModel, *, seed: int = 0) -> ComplexityModel:
    """Fit the model on `rows` with the encoder of `outcome_model`; deterministic."""
    return _fit(encoded(_prompts(rows), outcome_model), _cuts(rows), outcome_model, seed)


def out_of_fold(rows: Sequence[LabelledPrompt], outcome_model: OutcomeModel, *, seed: int = 0) -> Float:
    """Return P(class) [n, 4] of each row by a model trained without its fold."""
    read, cuts = encoded(_prompts(rows), outcome_model), _cuts(rows)
    fold, unseen = _folds(len(rows), seed), np.zeros((len(rows), CUTS + 1), np.float32)
    for k in range(FOLDS):
        model = _fit(_part(read, fold != k), cuts[fold != k], outcome_model, seed)
        unseen[fold == k] = _predicted(model, _part(read, fold == k))
    return unseen


def predicted(model: ComplexityModel, prompts: Sequence[RoutingInput], outcome_model: OutcomeModel) -> Float:
    """Return P(class) [n, 4] of `prompts`, each the mixture of its readings."""
    read = [(row, *reading) for row, prompt in enumerate(prompts) for reading in prompt.as_classified]
    rows, inputs, weights = zip(*read, strict=True)
    p_class = np.zeros((len(prompts), CUTS + 1), np.float32)
    shares = np.array(weights, np.float32)[:, None]
    np.add.at(p_class, np.array(rows), shares * _predicted(model, encoded(inputs, outcome_model)))
    return p_class


def _fit(read: Encoded, cuts: Float, outcome_model: OutcomeModel, seed: int) -> ComplexityModel:
    read = read._replace(features=read.features.copy())
    read.features[:, OF_FORM] = read.features[:, OF_FORM].mean(axis=0)
    centre, scale = read.features.mean(axis=0), read.features.std(axis=0) + np.float32(1e-3)
    x = _design(read, centre, scale)
    fold = _folds(len(cuts), seed + 1)
    coef, bias = _linear(x, cuts)
    unseen = np.zeros_like(cuts)
    for k in range(FOLDS):
        part, part_bias = _linear(x[fold != k], cuts[fold != k])
        unseen[fold == k] = x[fold == k] @ part + part_bias
    trees, _ = fit_trees(np.hstack([read.features, unseen]), cuts, fold, rounds=ROUNDS, seed=seed)
    rate = cuts.mean(axis=0)
    f = len(centre)
    grams, surface, embedding = np.split(coef, (2 * ROWS, 2 * ROWS + f))
    return ComplexityModel(
        trigrams=grams[:ROWS],
        words=grams[ROWS:],
        embedding=embedding * np.float32(EMBEDDING_SCALE),
        surface=surface * np.float32(SURFACE_SCALE),
        centre=centre,
        scale=scale,
        bias=bias,
        trees=trees,
        tree_bias=np.log(rate / (1 - rate)).astype(np.float32),
        encoder=str(outcome_model.manifest.encoder["sha256"]),
    )


def _linear(x: sp.csr_matrix, cuts: Float) -> tuple[Float, Float]:
    fitted = [fit_logistic(x, cuts[:, k], np.ones(len(cuts)), c=C) for k in range(CUTS)]
    return np.stack([coef for coef, _ in fitted], axis=1).astype(np.float32), np.array(
        [b for _, b in fitted], np.float32
    )


def _predicted(model: ComplexityModel, read: Encoded) -> Float:
    p_class = [
        model.probabilities(prompt.turn, tokenise(prompt.turn), features, embedding)
        for prompt, features, embedding in zip(read.prompts, read.features, read.embedding, strict=True)
    ]
    return np.array(p_class, np.float32).reshape(-1, CUTS + 1)


def _prompts(rows: Sequence[LabelledPrompt]) -> list[RoutingInput]:
    return [routing_input_of_text(row.prompt).request for row in rows]


def encoded(prompts: Sequence[RoutingInput], outcome_model: OutcomeModel) -> Encoded:
    """Return `prompts` as the model reads them."""
    turns = encode_turns(outcome_model.encoder, prompts)
    grams = [sp.hstack([_unit_rows(trigram_rows(p.turn)), _unit_rows(word_rows(tokenise(p.turn)))]) for p in prompts]
    return Encoded(
        list(prompts),
        sp.vstack(grams).tocsr(),
        np.stack([turn.features for turn in turns]),
        np.stack([turn.embedding for turn in turns]),
    )


def _unit_rows(rows: npt.NDArray[np.uint16]) -> sp.csr_matrix:
    values = np.full(len(rows), 1 / np.sqrt(max(len(rows), 1)))
    return sp.csr_matrix((values, (np.zeros(len(rows), np.intp), rows.astype(np.intp))), shape=(1, ROWS))


def _design(read: Encoded, centre: Float, scale: Float) -> sp.csr_matrix:
    dense = np.hstack([
        standardised(read.features, centre, scale) * SURFACE_SCALE,
        read.embedding * EMBEDDING_SCALE,
    ])  # fmt: skip
    return sp.hstack([read.grams, sp.csr_matrix(dense)]).tocsr()


def _part(read: Encoded, rows: npt.NDArray[np.bool_]) -> Encoded:
    kept = [prompt for prompt, keep in zip(read.prompts, rows, strict=True) if keep]
    return Encoded(kept, read.grams[np.flatnonzero(rows)], read.features[rows], read.embedding[rows])


def _cuts(rows: Sequence[LabelledPrompt]) -> Float:
    """Return [n, 3]: the share of a prompt's raters whose class is at most k."""
    return np.array([[np.mean([c <= k for c in row.classes]) for k in range(1, CUTS + 1)] for row in rows], np.float32)


def _folds(rows: int, seed: int) -> npt.NDArray[np.intp]:
    return np.random.default_rng(seed).permutation(rows) % FOLDS
