"""Cells and heads from a catalogue's own labels: exact formulas, and better than the rate."""

import numpy as np
import numpy.typing as npt
import pytest

from classifier.complexity.classes import Complexity, adequacies, adequacy
from classifier.local import estimator
from classifier.local.cells import MOST_WEIGHT, ClassCells, Labels, group_shifts
from classifier.local.estimator import MOST_FOR_HEAD, N0_CATALOGUE, N0_KEY, KernelHead, LocalEstimator

Float = npt.NDArray[np.float32]
LIKE = (Complexity.SIMPLE, Complexity.MEDIUM, Complexity.COMPLEX)
TABLE = adequacies(LIKE)[:, :-1]
SIMPLE, EXPERT = (1.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0)


def labels(
    scores: list[list[float]],
    *,
    classes: list[tuple[float, ...]] | None = None,
    whole: list[tuple[float, ...]] | None = None,
    key: list[int] | None = None,
    context: list[int] | None = None,
    embedding: Float | None = None,
    weight: float = 1.0,
    tenant: list[int] | None = None,
    private: bool = False,
) -> Labels:
    n = len(scores)
    return Labels(
        classes=np.array(classes or [SIMPLE] * n, np.float32),
        whole=np.array(whole or classes or [SIMPLE] * n, np.float32),
        embedding=np.zeros((n, 4), np.float32) if embedding is None else embedding,
        surface=np.zeros((n, 3), np.float32),
        scores=np.array(scores, np.float32),
        weights=np.full((n, 2), weight, np.float32),
        key=np.array(key or [0] * n, np.int32),
        context=np.array(context or [-1] * n, np.int32),
        tenant=np.array(tenant or [-1] * n, np.int32),
        private=np.full(n, private),
    )


def p_ok(
    known: Labels,
    *,
    classes: tuple[float, ...] = SIMPLE,
    key: int = 0,
    context: int = -1,
    whole: tuple[float, ...] | None = None,
    tenant: int = -1,
) -> list[float]:
    nothing = np.zeros(4, np.float32)
    of_whole = None if whole is None else np.array(whole, np.float32)
    found = LocalEstimator(known, TABLE).estimate(
        np.array(classes, np.float32), nothing, nothing[:3], key, context, tenant, of_whole
    )
    return [float(p) for p in found.p_ok]


def test_a_cell_adds_its_labels_to_the_pseudo_counts_of_its_parent() -> None:
    """p = (n0 p_parent + good) / (n0 + n), for the one class that all labels are of."""
    residual = np.array([[1.0], [1.0], [0.0]], np.float32) - 0.5
    shift, _ = group_shifts(np.zeros(3, np.int32), 1, residual, np.ones((3, 1), np.float32), 5.0)
    assert 0.5 + shift[0, 0] == pytest.approx((5 * 0.5 + 2) / (5 + 3))


def test_the_leave_one_out_prediction_equals_a_fit_without_the_label() -> None:
    rng = np.random.default_rng(1)
    classes = rng.dirichlet(np.ones(4), 12).astype(np.float32)
    residual = rng.normal(size=(12, 2)).astype(np.float32)
    told = rng.uniform(0, 1, (12, 2)).astype(np.float32)
    told[3, 0] = 0.0
    _, others = ClassCells.fit(classes, residual, told, 3.0)
    embedding = rng.normal(size=(12, 5)).astype(np.float32)
    embedding /= np.linalg.norm(embedding, axis=1, keepdims=True)
    surface = rng.normal(size=(12, 6)).astype(np.float32)
    _, by_head = KernelHead.fit(embedding, surface, residual, told)
    for i in range(12):
        rest = np.arange(12) != i
        cells, _ = ClassCells.fit(classes[rest], residual[rest], told[rest], 3.0)
        np.testing.assert_allclose(
            classes[i] @ cells.table(), np.where(told[i] > 0, others[i], classes[i] @ cells.table()), atol=1e-4
        )
        head, _ = KernelHead.fit(embedding[rest], surface[rest], residual[rest], told[rest])
        said = head.shift(embedding[i], surface[i])
        np.testing.assert_allclose(said, np.where(told[i] > 0, by_head[i], said), atol=1e-4)


def test_without_labels_of_a_tier_the_prior_stands() -> None:
    known = labels([[1.0, float("nan")]] * 8)
    assert p_ok(known)[1] == pytest.approx(adequacy(SIMPLE, LIKE)[1], abs=1e-6)


def test_the_prior_is_of_the_request_and_what_labels_teach_of_the_whole_turn() -> None:
    """Of one request tier 1 answers well without material and badly with it; the prior cannot tell them apart."""
    known = labels([[1.0, 1.0]] * 12 + [[0.0, 1.0]] * 12, whole=[SIMPLE] * 12 + [EXPERT] * 12)
    assert p_ok(known)[0] > 0.8 > 0.5 > p_ok(known, whole=EXPERT)[0]
    unknown = labels([[float("nan"), 1.0]] * 12, whole=[EXPERT] * 12)
    assert p_ok(unknown, whole=EXPERT)[0] == pytest.approx(adequacy(SIMPLE, LIKE)[0], abs=1e-6)
    assert p_ok(unknown, classes=EXPERT, whole=SIMPLE)[0] == pytest.approx(adequacy(EXPERT, LIKE)[0], abs=1e-6)


def test_what_another_tenant_knows_of_a_whole_turn_adds_to_the_pseudo_counts_of_its_request() -> None:
    """p = (n0 p + good) / (n0 + n), for p of the request and counts of turns like this one."""
    bad = labels([[0.0, 1.0]] * 9, whole=[EXPERT] * 9, tenant=[0] * 9)
    expected = N0_CATALOGUE * adequacy(SIMPLE, LIKE)[0] / (N0_CATALOGUE + MOST_WEIGHT)
    assert p_ok(bad, whole=EXPERT, key=7, tenant=7)[0] == pytest.approx(expected, abs=1e-6)
    assert p_ok(bad, key=7, tenant=7)[0] == pytest.approx(adequacy(SIMPLE, LIKE)[0], abs=1e-6)


def test_labels_are_counted_by_the_classes_of_whole_turns() -> None:
    estimator = LocalEstimator(labels([[0.0, 1.0]] * 9, whole=[EXPERT] * 9), TABLE)
    simple, expert, nothing = np.array(SIMPLE, np.float32), np.array(EXPERT, np.float32), np.zeros(4, np.float32)
    counts = [estimator.estimate(simple, nothing, nothing[:3], 0, -1, -1, one).labels[0] for one in (None, expert)]
    assert counts == [0.0, 9.0]


def test_labels_replace_the_prior() -> None:
    bad = p_ok(labels([[0.0, 1.0]] * 60))
    assert bad[0] < 0.1
    assert bad[1] > 0.95


def test_a_class_without_labels_keeps_nearly_its_own_prior() -> None:
    """One cell for all classes moves together with the labels; each class's own does not."""
    known = labels([[0.0, 1.0]] * 12)
    before = adequacy(EXPERT, LIKE)[0]
    assert p_ok(known)[0] < 0.45
    assert abs(p_ok(known, classes=EXPERT)[0] - before) < 0.5


def test_a_key_without_labels_has_the_catalogues_and_another_key_its_own() -> None:
    """Key 0's answers are bad and key 1's good; a third key is between them."""
    known = labels([[0.0, 1.0]] * 30 + [[1.0, 1.0]] * 30, key=[0] * 30 + [1] * 30)
    bad, good, other = (p_ok(known, key=key)[0] for key in (0, 1, 7))
    assert bad < 0.35 < other < 0.75 < good


def test_system_prompts_of_a_key_have_separate_cells() -> None:
    known = labels([[0.0, 1.0]] * 15 + [[1.0, 1.0]] * 15, context=[0] * 15 + [1] * 15)
    assert p_ok(known, context=0)[0] < p_ok(known, context=-1)[0] < p_ok(known, context=1)[0]


def test_labels_that_tell_less_move_less() -> None:
    assert p_ok(labels([[0.0, 1.0]] * 10, weight=0.25))[0] > p_ok(labels([[0.0, 1.0]] * 10))[0]


def test_counts_say_how_many_labels_are_behind_an_estimate() -> None:
    known = labels([[1.0, 1.0]] * 5 + [[0.0, 1.0]] * 2, key=[3] * 7)
    found = LocalEstimator(known, TABLE)
    at = found.estimate(np.array(SIMPLE, np.float32), np.zeros(4, np.float32), np.zeros(3, np.float32), 3, -1)
    assert at.labels.tolist() == [7.0, 7.0]
    assert at.good.tolist() == [5.0, 7.0]
    assert (found.labels_of(3), found.labels_of(0), found.labels_of(9)) == (7, 0, 0)


def test_a_key_learns_from_all_of_its_labels_and_its_head_from_the_newest() -> None:
    old, new = 300, MOST_FOR_HEAD
    known = labels([[0.0, 1.0]] * old + [[1.0, 1.0]] * new, classes=[EXPERT] * old + [SIMPLE] * new)
    nothing = np.zeros(4, np.float32)
    found = LocalEstimator(known, TABLE).estimate(np.array(EXPERT, np.float32), nothing, nothing[:3], 0, -1)
    assert found.labels.tolist() == [old, old]
    assert found.p_ok[0] < 0.15


@pytest.mark.parametrize("tenant", [-1, 0])
def test_the_estimate_above_a_key_is_known_without_each_of_its_labels(tenant: int) -> None:
    """Labels of keys 0 and 1 of one tenant, or of none, and of another tenant."""
    rng = np.random.default_rng(5)
    classes = [SIMPLE if simple else EXPERT for simple in rng.random(30) < 0.5]
    scores = rng.integers(0, 2, (30, 2)).astype(float).tolist()
    owners = [tenant] * 20 + [1] * 10
    turns = [SIMPLE if simple else EXPERT for simple in rng.random(30) < 0.5]
    known = labels(scores, classes=classes, whole=turns, key=[0] * 10 + [1] * 10 + [2] * 10, tenant=owners)

    def above(some: Labels) -> tuple[Float, Float]:
        parent, without = estimator.Catalogue(some, estimator.Parent.without_labels(TABLE, None), 0).tenants_parent(
            tenant
        )
        return parent.of_labels(known), without

    whole, without = above(known)
    assert not without[20:].any(), "these it has not seen"
    for i in range(20):
        rest, _ = above(known.take(np.arange(30) != i))
        np.testing.assert_allclose(whole[i] + without[i], rest[i], atol=1e-5)


def test_a_head_separates_two_kinds_of_prompts_of_one_class() -> None:
    rng = np.random.default_rng(2)
    kinds = np.eye(4, dtype=np.float32)[:2]
    embedding = np.repeat(kinds, 60, axis=0) + rng.normal(0, 0.05, (120, 4)).astype(np.float32)
    embedding /= np.linalg.norm(embedding, axis=1, keepdims=True)
    good = np.where(np.arange(120) < 60, rng.random(120) < 0.95, rng.random(120) < 0.15)
    known = labels([[float(g), 1.0] for g in good], embedding=embedding)
    found = LocalEstimator(known, TABLE)
    first, second = (
        found.estimate(np.array(SIMPLE, np.float32), kind, np.zeros(3, np.float32), 0, -1).p_ok[0] for kind in kinds
    )
    assert first > 0.8
    assert second < 0.3


def test_a_head_that_predicts_no_better_is_left_out() -> None:
    """Labels independent of the prompt: the estimate stays near their rate."""
    rng = np.random.default_rng(3)
    embedding = rng.normal(size=(200, 4)).astype(np.float32)
    embedding /= np.linalg.norm(embedding, axis=1, keepdims=True)
    known = labels([[float(good), 1.0] for good in rng.random(200) < 0.6], embedding=embedding)
    found = LocalEstimator(known, TABLE)
    said = [
        float(found.estimate(np.array(SIMPLE, np.float32), one, np.zeros(3, np.float32), 0, -1).p_ok[0])
        for one in embedding[:50]
    ]
    assert max(said) - min(said) < 0.35


def test_one_label_moves_an_estimate_by_less_than_its_share() -> None:
    before = adequacy(SIMPLE, LIKE)[0]
    moved = before - p_ok(labels([[0.0, 1.0]]))[0]
    assert 0 < moved < 2 * (1 / (1 + N0_CATALOGUE) + 1 / (1 + N0_KEY))
