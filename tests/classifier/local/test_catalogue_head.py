"""The head over all keys: an exact optimum, bounded by tenant, and the parent of every cell."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, save

from classifier.complexity.classes import Complexity, adequacies
from classifier.local.cells import LABELS_BOUND, TENANT_BOUND, Labels
from classifier.local.estimator import LocalEstimator
from classifier.model.learned import CatalogueHead, inputs
from classifier.training.fitting.class_refit import fit_head
from tests.classifier.local.test_tenant_cells import labels_of, together

Float = npt.NDArray[np.float32]
TABLE = adequacies(tuple(Complexity))[:, :-1]
NEW = -1


def prompts(rng: np.random.Generator, n: int = 20) -> tuple[Float, Float, Float]:
    classes, embedding, surface = rng.dirichlet(np.full(4, 0.3), n), rng.normal(size=(n, 4)), rng.normal(size=(n, 3))
    return classes.astype(np.float32), embedding.astype(np.float32), surface.astype(np.float32)


def since(known: Labels, head: CatalogueHead, asked: tuple[Float, Float, Float], trained: int) -> Float:
    """What a fresh tenant gets by a version that was trained on the first `trained` of the labels."""
    estimator = LocalEstimator(known, TABLE, trained, keys=(), head=head)
    return np.clip(estimator.score(*asked, NEW, NEW, NEW), 0.0, 1.0)


def test_the_weights_are_at_the_minimum_of_the_penalised_log_loss() -> None:
    """There the slope is zero: the labels' pull on each weight equals its penalty times the weight."""
    known = labels_of(-1, np.random.default_rng(1), 200)
    head = fit_head(known, TABLE, 4.0)
    x = inputs(known.classes, known.embedding, known.surface)
    missed = known.told * (np.nan_to_num(known.scores) - head.p(known.classes, known.embedding, known.surface))
    penalties = np.array([2.0] * 4 + [4.0] * 7)[:, None]
    np.testing.assert_allclose(x.T @ missed, penalties * head.weights, atol=1e-3)
    assert np.abs(head.weights).max() > 0.1


def test_inputs_are_never_longer_than_the_bound_assumes() -> None:
    classes, embedding, surface = prompts(np.random.default_rng(2))
    found = inputs(classes, 9 * embedding, 9 * surface)
    for part in (found[:, :4], found[:, 4:8], found[:, 8:]):
        assert (np.linalg.norm(part, axis=1) <= 1 + 1e-6).all()


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1), floods=st.integers(1, 1500), penalty=st.sampled_from([1.0, 4.0, 16.0]),
    good=st.sampled_from([0.0, 0.5, 1.0]), others=st.lists(st.integers(1, 60), max_size=3),
    keyless=st.integers(0, 60), trained=st.booleans(),
)  # fmt: skip
def test_labels_of_one_tenant_move_a_fresh_tenants_probabilities_by_at_most_the_bound(
    seed: int, floods: int, penalty: float, good: float, others: list[int], keyless: int, trained: bool
) -> None:
    rng = np.random.default_rng(seed)
    asked = prompts(rng)
    rest = together(labels_of(-1, rng, keyless), *(labels_of(t, rng, n) for t, n in enumerate(others, start=1)))
    flood = labels_of(0, rng, floods, good=good)
    # A tenant whose prompts are all alike pulls hardest on what is asked of such prompts.
    flood.classes[:], flood.embedding[:], flood.surface[:] = (part[0] for part in asked)
    both = together(rest, flood)
    before, after = (fit_head(known, TABLE, penalty) for known in (rest, both))
    assert np.abs(after.p(*asked) - before.p(*asked)).max() <= LABELS_BOUND + 1e-5
    if trained:
        # The same labels, and as many since then.
        later = together(rest, flood, flood)
        moved = since(later, after, asked, len(both)) - since(rest, before, asked, len(rest))
        assert np.abs(moved).max() <= TENANT_BOUND + 1e-5


def test_one_tenant_does_move_others() -> None:
    rng = np.random.default_rng(3)
    asked = prompts(rng)
    flood = labels_of(0, rng, 2000, good=0.0)
    even = np.full_like(TABLE, 0.5)
    flood.classes[:], flood.embedding[:], flood.surface[:] = (part[0] for part in asked)
    moved = 0.5 - fit_head(flood, even, 4.0).p(*(part[0] for part in asked))
    assert moved.min() > 0.25 * LABELS_BOUND


def test_callers_without_labels_get_what_the_head_says_and_keys_learn_on_top_of_it() -> None:
    rng = np.random.default_rng(4)
    asked = prompts(rng)
    known = labels_of(-1, rng, 120)
    head = fit_head(known, TABLE, 4.0)
    np.testing.assert_allclose(since(known, head, asked, len(known)), head.p(*asked), atol=1e-6)
    bad = labels_of(0, rng, 80, good=0.0)
    own = LocalEstimator(together(known, bad), TABLE, len(known), head=head).score(*asked, int(bad.key[0]), NEW, 0)
    assert own.mean() < 0.2 < head.p(*asked).mean()


def test_without_tensors_there_is_no_head_and_half_of_them_are_refused() -> None:
    # A column of a wider table is not contiguous in memory.
    head = CatalogueHead(adequacies(tuple(Complexity))[:, :-1], np.ones((9, TABLE.shape[1]), np.float32))
    found = CatalogueHead.from_tensors(load(save(head.tensors())))
    assert found is not None
    np.testing.assert_array_equal(found.prior, TABLE)
    np.testing.assert_array_equal(found.weights, head.weights)
    assert CatalogueHead.from_tensors({}) is None
    with pytest.raises(KeyError):
        CatalogueHead.from_tensors({"catalogue_head.prior": TABLE})
    with pytest.raises(ValueError, match="do not agree"):
        CatalogueHead.from_tensors(head.tensors() | {"catalogue_head.prior": TABLE[:, :1]})
