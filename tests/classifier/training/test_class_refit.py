"""The class model refitted with labels as soft targets: Bayes' rule, its optimum, what it recovers, and its bound."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, save

from classifier.complexity.classes import Complexity, adequacies
from classifier.local.cells import LABELS_BOUND, Labels
from classifier.model.learned import CatalogueHead, RefittedClasses, class_logits, inputs, learned_head
from classifier.training.fitting.class_refit import fit_classes, log_likelihoods, soft_targets
from tests.classifier.local.test_catalogue_head import prompts
from tests.classifier.local.test_tenant_cells import labels_of, together

Float = npt.NDArray[np.float32]
TABLE = adequacies(tuple(Complexity))[:, :-1]


def labelled(scores: list[list[float]], weights: list[list[float]]) -> Labels:
    n = len(scores)
    none = np.full(n, -1, np.int32)
    return Labels(
        classes=(even := np.full((n, 4), 0.25, np.float32)), whole=even, embedding=np.zeros((n, 2), np.float32),
        surface=np.zeros((n, 2), np.float32), scores=np.array(scores, np.float32),
        weights=np.array(weights, np.float32), key=none + 1, context=none, tenant=none,
        private=np.zeros(n, np.bool_),
    )  # fmt: skip


def test_a_soft_target_is_bayes_rule_over_the_table() -> None:
    table = np.array([[0.9, 0.95], [0.6, 0.9], [0.3, 0.8], [0.1, 0.5]], np.float32)
    q = np.array([0.1, 0.4, 0.3, 0.2])
    nan = float("nan")
    known = labelled([[1, nan], [0, 1], [0.5, nan], [1, 0], [nan, nan]], [[0.3, 0], [1, 1], [1, 0], [1, 0.5], [1, 1]])
    found = soft_targets(np.log(np.tile(q, (5, 1))), log_likelihoods(known, table))
    first, second = table.T
    likelihoods = [
        first,  # its weight scales the row, not what the label says
        (1 - first) * second,
        np.sqrt(first * (1 - first)),
        first * np.sqrt(1 - second),
        np.ones(4),
    ]
    expected = np.array([q * one / (q * one).sum() for one in likelihoods])
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_refitted_model_agrees_with_its_own_soft_targets_up_to_the_penalty() -> None:
    """The slope of the penalised likelihood is zero: a fixed point of expectation-maximisation."""
    known = labels_of(-1, np.random.default_rng(1), 300)
    found = fit_classes(known, TABLE, 4.0)
    x = inputs(known.classes, known.embedding, known.surface).astype(np.float64)
    logits = class_logits(known.classes) + x @ found.weights
    q = found.classes(known.classes, known.embedding, known.surface)
    told = known.told.max(axis=1)
    pull = x.T @ (told[:, None] * (soft_targets(logits, log_likelihoods(known, TABLE)) - q))
    penalties = np.array([1.0] * 4 + [4.0] * 7)[:, None]
    np.testing.assert_allclose(pull, penalties * found.weights, atol=2e-3)
    assert np.abs(found.weights).max() > 0.1


def planted(rng: np.random.Generator, n: int, *, seen: tuple[int, ...] = (0, 1, 2)) -> tuple[Labels, Float]:
    """Labels of prompts that the shipped model calls easier than they are, the more so the greater the embedding's
    first number; of the tiers `seen`. And their true classes [n, 4]."""
    classes, embedding, surface = prompts(rng, n)
    embedding /= np.linalg.norm(embedding, axis=1, keepdims=True)
    weights = np.zeros((11, 4), np.float32)
    weights[:4] = np.array([-1.0, -0.3, 0.3, 1.0])
    weights[4] = 2.0 * np.array([-1.0, -0.3, 0.3, 1.0])
    true = RefittedClasses(TABLE, weights).classes(classes, embedding, surface)
    chosen = (rng.random((n, 1)) > true.cumsum(axis=1)).sum(axis=1).clip(max=3)
    scores = (rng.random((n, 3)) < TABLE[chosen]).astype(np.float32)
    scores[:, [tier for tier in range(3) if tier not in seen]] = np.nan
    none = np.full(n, -1, np.int32)
    ones = np.ones((n, 3), np.float32)
    return Labels(classes, classes, embedding, surface, scores, ones, none + 1, none, none, np.zeros(n, np.bool_)), true


def test_a_planted_shift_of_the_classes_is_recovered() -> None:
    known, _ = planted(np.random.default_rng(2), 4000)
    asked, true = planted(np.random.default_rng(3), 1000)
    found = fit_classes(known, TABLE, 2.0).classes(asked.classes, asked.embedding, asked.surface)
    missed = [np.abs(p - true).sum(axis=1).mean() / 2 for p in (found, asked.classes)]
    assert missed[1] > 0.18
    assert missed[0] < missed[1] / 3


def test_labels_of_one_tier_teach_what_the_others_can_do() -> None:
    """One distribution over classes explains all tiers, which separate heads cannot know."""
    known, _ = planted(np.random.default_rng(4), 3000, seen=(1,))
    asked, true = planted(np.random.default_rng(5), 1000)
    found = fit_classes(known, TABLE, 2.0).p(asked.classes, asked.embedding, asked.surface)
    for tier in (0, 2):
        errors = [np.abs(p[:, tier] - (true @ TABLE)[:, tier]).mean() for p in (found, asked.classes @ TABLE)]
        assert errors[0] < 0.6 * errors[1]


def test_without_labels_and_from_private_ones_the_classes_are_those_that_ship() -> None:
    rng = np.random.default_rng(6)
    asked = prompts(rng)
    hidden = labels_of(0, rng, 40, private=True)
    for known in (hidden, hidden.take(np.zeros(40, np.bool_)), replace(hidden, weights=0 * hidden.weights)):
        found = fit_classes(known, TABLE, 2.0)
        assert not found.weights.any()
        np.testing.assert_allclose(found.classes(*asked), asked[0], atol=5e-4)


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 2**32 - 1), floods=st.integers(1, 800), penalty=st.sampled_from([0.5, 2.0, 8.0, 32.0]),
    good=st.sampled_from([0.0, 0.5, 1.0]), others=st.lists(st.integers(1, 60), max_size=3),
    keyless=st.integers(0, 60),
)  # fmt: skip
def test_labels_of_one_tenant_move_others_by_at_most_the_bound(
    seed: int, floods: int, penalty: float, good: float, others: list[int], keyless: int
) -> None:
    rng = np.random.default_rng(seed)
    asked = prompts(rng)
    rest = together(labels_of(-1, rng, keyless), *(labels_of(t, rng, n) for t, n in enumerate(others, start=1)))
    flood = labels_of(0, rng, floods, good=good)
    # A tenant whose prompts are all alike pulls hardest on what is asked of such prompts.
    flood.classes[:], flood.embedding[:], flood.surface[:] = (part[0] for part in asked)
    before, after = (fit_classes(known, TABLE, penalty) for known in (rest, together(rest, flood)))
    assert np.abs(after.p(*asked) - before.p(*asked)).max() <= LABELS_BOUND + 1e-4


def test_one_tenant_does_move_others_and_labels_without_one_have_no_bound() -> None:
    rng = np.random.default_rng(7)
    asked = prompts(rng, 1)
    asked[0][:] = [[0.0, 0.5, 0.0, 0.5]]
    table = np.array([[1.0], [1.0], [0.0], [0.0]], np.float32)
    flood = labels_of(0, rng, 2000, good=0.0)
    flood.classes[:], flood.embedding[:], flood.surface[:] = (part[0] for part in asked)
    flood = replace(flood, scores=np.zeros((2000, 1), np.float32), weights=np.ones((2000, 1), np.float32))
    moved = [
        float(0.5 - fit_classes(known, table, 4.0).p(*asked)[0, 0])
        for known in (flood, replace(flood, tenant=np.full(2000, -1, np.int32)))
    ]
    assert 0.2 * LABELS_BOUND < moved[0] <= LABELS_BOUND
    assert moved[1] > 0.4


def test_tensors_that_do_not_fit_are_refused() -> None:
    refitted = RefittedClasses(TABLE, np.ones((9, 4), np.float32))
    found = learned_head(load(save(refitted.tensors())))
    assert isinstance(found, RefittedClasses)
    np.testing.assert_array_equal(found.table, TABLE)
    np.testing.assert_array_equal(found.weights, refitted.weights)
    assert found.shape == (9, 3)
    assert learned_head({}) is None
    with pytest.raises(KeyError):
        learned_head({"refitted_classes.table": TABLE})
    with pytest.raises(ValueError, match="not of four"):
        learned_head(refitted.tensors() | {"refitted_classes.table": TABLE[:2]})
    head = CatalogueHead(TABLE, np.ones((9, 3), np.float32))
    assert isinstance(learned_head(head.tensors()), CatalogueHead)
    with pytest.raises(ValueError, match="one decides"):
        learned_head(head.tensors() | refitted.tensors())
