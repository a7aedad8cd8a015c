"""Refit the complexity model from an earlier one, its prior: on prompts with classes, and on prompts without, for which
the prior's probabilities are the targets. Copies that ask for the same (`classifier.training.fitting.copies`) have the
same target, and translations that of the English prompt.

The weights W of the linear part minimise, for each cut between classes,

sum of v cross-entropy(target, z) + AGREEMENT * sum of (z - mean of z in its group)^2 + |W - prior's W|^2 / (2 C)

over rows of weight v with logits z; a group is a prompt with its copies, paraphrases and translations. The trees are
fitted again, over the features and over logits of linear parts that did not see the row's group. Agreement and the
prior draw logits together; so at last those of each cut are stretched and shifted to what fits the rated prompts best,
by logits of linear parts that did not see them, each class with the same weight. The model is the average of what was
fitted so and the prior, which knows more of long prompts in English than the rated prompts say.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.optimize import minimize

from classifier.complexity.model import CUTS, ROWS, ComplexityModel, standardised
from classifier.encoders.boosted_trees import TreeArrays, Trees
from classifier.errors import TrainingDataError
from classifier.features.routing_input import routing_input_of_text
from classifier.model.outcome_model import OutcomeModel
from classifier.training.fitting.complexity import (
    EMBEDDING_SCALE,
    OF_FORM,
    ROUNDS,
    SURFACE_SCALE,
    Encoded,
    LabelledPrompt,
    encoded,
    predicted,
)
from classifier.training.fitting.copies import languages, misspelt, ornate, stuffed, switched, wrapped
from classifier.training.fitting.trees import fit_trees
from inference_core.io.json_lines import json_lines

Float = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

# Chosen by cross-validation on the rated prompts.
C, AGREEMENT = 10.0, 0.03
# The share of the prior: least log loss on rated prompts of other folds plus cross-entropy with the prior on 300
# unrated prompts that were not trained on; flat from 0.2 to 0.4.
KEPT = 0.3
# Weights of a rated prompt, of a copy and of a translation of it by the lexicon; and of prompts without classes.
RATED, RATED_COPY, RATED_SWITCHED = 2.0, 0.6, 0.4
UNRATED, UNRATED_COPY, UNRATED_TRANSLATION = 2.0, 0.6, 0.8
# No target is more certain, as raters differ.
_LEAST = 0.03
_FOLDS, _STEPS, _STEPS_OF_FOLDS = 3, 60, 40
# A longer prompt has no copy in words of the lexicon.
_SWITCHED_CHARS = 500
_SWITCHED = 4
_STUFFED = 0.3
# Kinds of prompts that are copies themselves: paraphrases, translations, and objects in a frame.
_OF_GROUPS = ("ornate", "wrapper", "misspelt", "terse", "casual", "translation", "frame")


class UnratedPrompt(msgspec.Struct, frozen=True):
    """A prompt without a class. Prompts of a `group` are translations of each other."""

    prompt: str
    lang: str = "en"
    group: str | None = None


def read_unrated(path: Path) -> list[UnratedPrompt]:
    """Return the rows of a file of JSON lines. Raises `TrainingDataError` naming the line."""
    return [row for _, row in json_lines(path, UnratedPrompt, TrainingDataError)]


class _Rows(NamedTuple):
    """Targets and weights of the rows."""

    prompts: list[str]
    targets: Float64
    """[n, 3]: P(class <= k)."""
    weights: Float64
    """[n]."""
    groups: npt.NDArray[np.intp]
    """[n]."""
    rated: npt.NDArray[np.bool_]
    """[n]: whether the row is written and rated so, and no copy."""

    def part(self, mask: npt.NDArray[np.bool_]) -> "_Rows":
        prompts = [prompt for prompt, keep in zip(self.prompts, mask, strict=True) if keep]
        groups = np.unique(self.groups[mask], return_inverse=True)[1]
        return _Rows(prompts, self.targets[mask], self.weights[mask], groups, self.rated[mask])


_Row = tuple[str, Sequence[float], float, str]


def refit_complexity(
    prior: ComplexityModel,
    rated: Sequence[LabelledPrompt],
    unrated: Sequence[UnratedPrompt],
    outcome_model: OutcomeModel,
    *,
    seed: int = 0,
) -> ComplexityModel:
    """Return the model refitted from `prior` with the encoder of `outcome_model`; deterministic."""
    rng = Random(seed)
    of_rated = list(_rows_of_rated(rated, rng))
    made = [*of_rated, *_rows_of_unrated(prior, unrated, outcome_model, rng)]
    written = {row.prompt for row in rated}
    own = {index for index, (prompt, *_) in enumerate(of_rated) if prompt in written}
    numbers = {name: number for number, name in enumerate(dict.fromkeys(group for *_, group in made))}
    rows = _Rows(
        [prompt for prompt, *_ in made],
        np.array([target for _, target, _, _ in made]),
        np.array([weight for _, _, weight, _ in made]),
        np.array([numbers[group] for *_, group in made]),
        np.array([index in own for index in range(len(made))]),
    )
    read = encoded([routing_input_of_text(prompt).request for prompt in rows.prompts], outcome_model)
    read = _without_form(read, prior)
    return _averaged(prior, _fit(prior, rows, read, seed))


def out_of_fold_refits(
    prior: ComplexityModel,
    rated: Sequence[LabelledPrompt],
    unrated: Sequence[UnratedPrompt],
    outcome_model: OutcomeModel,
    *,
    seed: int = 0,
) -> Float:
    """Return P(class) [n, 4] of the `rated` prompts by models refitted without their groups."""
    fold = np.array([_fold_of(_group_of(index, row)) for index, row in enumerate(rated)])
    unseen = np.zeros((len(rated), CUTS + 1), np.float32)
    for k in range(_FOLDS):
        train_rows = [row for row, own in zip(rated, fold, strict=True) if own != k]
        model = refit_complexity(prior, train_rows, unrated, outcome_model, seed=seed)
        mine = [routing_input_of_text(row.prompt) for row, own in zip(rated, fold, strict=True) if own == k]
        unseen[fold == k] = predicted(model, mine, outcome_model)
    return unseen


def _group_of(number: int, row: LabelledPrompt) -> str:
    return f"rated {number}" if row.group is None else f"group {row.group}"


def _fold_of(group: str) -> int:
    """Return the fold of a group. Groups that differ after a dot are related."""
    return sum(group.partition(".")[0].encode()) % _FOLDS


def _rows_of_rated(rated: Sequence[LabelledPrompt], rng: Random) -> Iterator[_Row]:
    for index, row in enumerate(rated):
        target = [
            float(np.clip(np.mean([c <= k for c in row.classes]), _LEAST, 1 - _LEAST)) for k in range(1, CUTS + 1)
        ]
        group, weight = _group_of(index, row), row.weight
        yield row.prompt, target, RATED * weight, group
        if row.kind in _OF_GROUPS:
            continue
        yield _copy(row.prompt, row.lang, rng), target, RATED_COPY * weight, group
        if max(row.classes) <= 2 and rng.random() < _STUFFED:
            yield stuffed(row.prompt, rng), target, RATED_COPY * weight, group
        if row.lang == "en":
            for language in rng.sample(languages(), _SWITCHED):
                mixed = switched(row.prompt, language, rng)
                if mixed is not None:
                    yield mixed, target, RATED_SWITCHED * weight, group


def _copy(prompt: str, language: str, rng: Random) -> str:
    kind = rng.choice(("misspelt", "wrapped", "ornate") if language == "en" else ("misspelt", "wrapped"))
    if kind == "misspelt":
        return misspelt(prompt, rng)
    return ornate(prompt, rng) if kind == "ornate" else wrapped(prompt, rng, language)


def _rows_of_unrated(
    prior: ComplexityModel, unrated: Sequence[UnratedPrompt], outcome_model: OutcomeModel, rng: Random
) -> Iterator[_Row]:
    english = [row for row in unrated if row.lang == "en"]
    if not english:
        return
    classes = predicted(prior, [routing_input_of_text(row.prompt) for row in english], outcome_model)
    targets = np.cumsum(classes, axis=1)[:, :CUTS].astype(np.float64).tolist()
    of_group: Mapping[str, list[float]] = {
        row.group: target for row, target in zip(english, targets, strict=True) if row.group is not None
    }
    for index, (row, target) in enumerate(zip(english, targets, strict=True)):
        if row.group is not None:
            continue
        group = f"unrated {index}"
        yield row.prompt, target, UNRATED, group
        for kind in rng.sample((misspelt, ornate, wrapped), 2):
            yield kind(row.prompt, rng), target, UNRATED_COPY, group
        if len(row.prompt) < _SWITCHED_CHARS:
            if rng.random() < _STUFFED / 2:
                yield stuffed(row.prompt, rng), target, UNRATED_COPY / 2, group
            mixed = switched(row.prompt, rng.choice(languages()), rng)
            if mixed is not None:
                yield mixed, target, UNRATED_COPY, group
    for row in unrated:
        if row.group is not None and row.group in of_group:
            yield row.prompt, of_group[row.group], UNRATED_TRANSLATION, f"translations {row.group}"


def _without_form(read: Encoded, prior: ComplexityModel) -> Encoded:
    """Return `read` with each feature of form at the prior's mean: the model has no weights and no splits for them."""
    features = read.features.copy()
    features[:, OF_FORM] = prior.centre[OF_FORM]
    return read._replace(features=features)


def _fit(prior: ComplexityModel, rows: _Rows, read: Encoded, seed: int) -> ComplexityModel:
    dense = np.hstack(
        [standardised(read.features, prior.centre, prior.scale) * SURFACE_SCALE, read.embedding * EMBEDDING_SCALE]
    )
    x = sp.hstack([read.grams, sp.csr_matrix(dense)]).tocsr()
    start = np.vstack(
        [prior.trigrams, prior.words, prior.surface / SURFACE_SCALE, prior.embedding / EMBEDDING_SCALE, prior.bias]
    ).astype(np.float64)
    coef = _linear(x, rows, start, start, _STEPS)
    fold, unseen = rows.groups % _FOLDS, np.zeros_like(rows.targets)
    for k in range(_FOLDS):
        part = _linear(x[fold != k], rows.part(fold != k), start, coef, _STEPS_OF_FOLDS)
        unseen[fold == k] = x[fold == k] @ part[:-1] + part[-1]
    # The learner of trees takes rows of one weight: as many are drawn, by their weights.
    drawn = np.random.default_rng(seed).choice(len(unseen), len(unseen), p=rows.weights / rows.weights.sum())
    inputs, cuts = np.hstack([read.features, unseen])[drawn].astype(np.float32), rows.targets[drawn].astype(np.float32)
    trees, _ = fit_trees(inputs, cuts, np.zeros(len(cuts), np.intp), rounds=ROUNDS, seed=seed)
    rate, f = cuts.mean(axis=0), len(prior.centre)
    tree_bias = np.log(rate / (1 - rate))
    own = rows.rated
    told = trees.logits(np.hstack([read.features, unseen])[own].astype(np.float32))
    slope, shift = _stretched((unseen[own] + tree_bias + told) / 2, rows.targets[own])
    coef = coef * slope
    coef[-1] += shift
    grams, surface, embedding = np.split(coef[:-1].astype(np.float32), (2 * ROWS, 2 * ROWS + f))
    return ComplexityModel(
        trigrams=grams[:ROWS],
        words=grams[ROWS:],
        embedding=embedding * np.float32(EMBEDDING_SCALE),
        surface=surface * np.float32(SURFACE_SCALE),
        centre=prior.centre,
        scale=prior.scale,
        bias=coef[-1].astype(np.float32),
        trees=_behind(trees, f, slope, shift),
        tree_bias=(slope * tree_bias + shift).astype(np.float32),
        encoder=prior.encoder,
    )


def _linear(x: Any, rows: _Rows, prior: Float64, start: Float64, steps: int) -> Float64:
    """Return the weights [d + 1, 3], the last of them the bias, from `start` on; the bias is not penalised."""
    transposed, size = x.T.tocsr(), np.bincount(rows.groups)
    weights = np.empty_like(prior)
    for k in range(CUTS):
        target, before = rows.targets[:, k], prior[:-1, k]

        def loss(theta: Float64, target: Float64 = target, before: Float64 = before) -> tuple[float, Float64]:
            shift, z = theta[:-1] - before, x @ theta[:-1] + theta[-1]
            apart = z - (np.bincount(rows.groups, z) / size)[rows.groups]
            cross = rows.weights @ (np.logaddexp(0.0, z) - target * z)
            slope = rows.weights * (1 / (1 + np.exp(-np.clip(z, -60, 60))) - target) + 2 * AGREEMENT * apart
            value = cross + AGREEMENT * (apart @ apart) + shift @ shift / (2 * C)
            return float(value), np.append(transposed @ slope + shift / C, slope.sum())

        weights[:, k] = minimize(loss, start[:, k], jac=True, method="L-BFGS-B", options={"maxiter": steps}).x
    return weights


def _stretched(logits: Float64, targets: Float64) -> tuple[Float64, Float64]:
    """Return the slope and shift [3] of each cut's `logits` [n, 3] that fit the `targets` best, each class with the
    same weight in all."""
    nearest = np.clip(np.round(CUTS + 1 - targets.sum(axis=1)), 1, CUTS + 1).astype(np.intp)
    weights = 1.0 / np.bincount(nearest, minlength=CUTS + 2)[nearest]
    fitted = np.empty((2, CUTS))
    for k in range(CUTS):

        def loss(by: Float64, z: Float64 = logits[:, k], target: Float64 = targets[:, k]) -> float:
            moved = by[0] * z + by[1]
            return float(weights @ (np.logaddexp(0.0, moved) - target * moved))

        fitted[:, k] = minimize(loss, np.array([1.0, 0.0]), method="L-BFGS-B", bounds=[(0.5, 3.0), (-3.0, 3.0)]).x
    return fitted[0], fitted[1]


def _behind(trees: Trees, features: int, slope: Float64, shift: Float64) -> Trees:
    """Return `trees` that give `slope` times as much for linear logits that were stretched and shifted so."""
    arrays, threshold = trees.arrays, trees.arrays.threshold.astype(np.float64)
    cut = np.clip(arrays.feature - features, 0, None)
    moved = np.where(arrays.feature >= features, threshold * slope[cut] + shift[cut], threshold)
    head = np.zeros(len(moved), np.intp)
    for root, end, own in zip(arrays.root, [*arrays.root[1:], len(moved)], arrays.head, strict=True):
        head[root:end] = own
    value = arrays.value * slope[head]
    return Trees(
        arrays._replace(threshold=moved.astype(np.float32), value=value.astype(np.float32)),
        features=trees.features,
        heads=trees.heads,
    )


def _averaged(prior: ComplexityModel, fitted: ComplexityModel) -> ComplexityModel:
    """Return the model of `KEPT` times the weights of `prior` and the rest of `fitted`, with the trees of both."""

    def mean(before: Float, after: Float) -> Float:
        return (KEPT * before + (1 - KEPT) * after).astype(np.float32)

    old, new = prior.trees.arrays, fitted.trees.arrays
    arrays = TreeArrays(
        feature=np.concatenate([old.feature, new.feature]),
        threshold=np.concatenate([old.threshold, new.threshold]),
        left=np.concatenate([old.left, new.left + np.int32(len(old.left))]),
        right=np.concatenate([old.right, new.right + np.int32(len(old.right))]),
        value=np.concatenate([old.value * KEPT, new.value * (1 - KEPT)]).astype(np.float32),
        root=np.concatenate([old.root, new.root + np.int32(len(old.feature))]),
        head=np.concatenate([old.head, new.head]),
    )
    return ComplexityModel(
        trigrams=mean(prior.trigrams, fitted.trigrams),
        words=mean(prior.words, fitted.words),
        embedding=mean(prior.embedding, fitted.embedding),
        surface=mean(prior.surface, fitted.surface),
        centre=prior.centre,
        scale=prior.scale,
        bias=mean(prior.bias, fitted.bias),
        trees=Trees(arrays, features=prior.trees.features, heads=CUTS),
        tree_bias=mean(prior.tree_bias, fitted.tree_bias),
        encoder=prior.encoder,
    )
