"""Boosted trees as arrays: equal to the library's, cross-fitted, refused if invalid."""

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier

from classifier.encoders.boosted_trees import TreeArrays, Trees
from classifier.training.fitting import trees as trees_fit
from classifier.training.fitting.trees import fit_trees


def rows(n: int = 800) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features [n, 4], labels [n, 2] of which the second is seldom observed, folds [n]."""
    rng = np.random.default_rng(0)
    # Few distinct values: scikit-learn then needs no weighted percentiles, which would be most of the time.
    features = rng.normal(size=(n, 4)).round(1).astype(np.float32)
    right = ((features[:, 0] > 0.3) ^ (features[:, 1] > 0)).astype(np.float32)
    labels = np.stack([right, np.where(np.arange(n) % 2, right, np.nan)], axis=1)
    return features, labels, np.arange(n) % 5


def test_the_arrays_predict_what_the_library_predicts() -> None:
    features, labels, fold = rows()
    found, _ = fit_trees(features, labels, fold, rounds=12, seed=3)
    model = HistGradientBoostingClassifier(
        max_iter=12,
        max_features=trees_fit._FEATURES_LOOKED_AT,
        early_stopping=False,
        random_state=3,
        **trees_fit._SHAPE,
    ).fit(features, labels[:, 0] > 0.5)
    wanted = model.decision_function(features) - model._baseline_prediction.ravel()
    np.testing.assert_allclose(found.logits(features)[:, 0], wanted, atol=1e-5)


def test_one_row_gets_what_many_rows_get() -> None:
    features, labels, fold = rows()
    found, _ = fit_trees(features, labels, fold, rounds=9)
    features[0, :] = np.nan  # goes right everywhere
    for row, wanted in zip(features[:50], found.logits(features[:50]), strict=True):
        logits = np.array([1.0, -1.0], np.float32)
        found.add_to(logits, row)
        assert logits == pytest.approx(wanted + np.array([1.0, -1.0]), abs=1e-5)


def test_a_row_is_judged_by_trees_that_did_not_see_its_fold() -> None:
    features, _, fold = rows()
    noise = np.random.default_rng(1).integers(0, 2, size=(len(features), 1)).astype(np.float32)
    found, unseen = fit_trees(features, noise, fold, rounds=60)
    assert np.corrcoef(found.logits(features)[:, 0], noise[:, 0])[0, 1] > 0.3
    assert abs(np.corrcoef(unseen[:, 0], noise[:, 0])[0, 1]) < 0.1


def test_soft_labels_count_in_proportion_and_labels_of_one_kind_give_no_trees() -> None:
    features, labels, fold = rows()
    soft = np.stack([0.5 + 0.2 * (labels[:, 0] - 0.5), np.ones(len(features))], axis=1).astype(np.float32)
    logits = fit_trees(features, soft, fold, rounds=60)[0].logits(features)
    right = labels[:, 0] > 0.5
    assert logits[right, 0].mean() == pytest.approx(np.log(0.6 / 0.4), abs=0.15)
    assert not logits[:, 1].any()


def test_saved_trees_are_the_same_trees() -> None:
    features, labels, fold = rows()
    found, _ = fit_trees(features, labels, fold, rounds=8)
    again = Trees.from_tensors(found.tensors(), features=4, heads=2)
    assert (again.logits(features) == found.logits(features)).all()
    assert len(again.arrays.root) == 8 + 4  # half as many rows, half as many trees


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [("left", 0, 0), ("right", 0, 999), ("feature", 0, 4), ("root", 0, -1), ("head", 0, 2), ("feature", 0, -1)],
)
def test_arrays_that_are_no_trees_are_refused(name: str, place: int, value: int) -> None:
    features, labels, fold = rows()
    arrays = fit_trees(features, labels, fold, rounds=2)[0].arrays
    changed = getattr(arrays, name).copy()
    changed[place] = value
    with pytest.raises(ValueError, match="are no trees over 4 features and 2 heads"):
        Trees(arrays._replace(**{name: changed}), features=4, heads=2)
    with pytest.raises(ValueError, match="do not agree"):
        Trees(TreeArrays(*(array[:1] for array in arrays[:6]), arrays.head[:0]), features=4, heads=2)


def test_a_node_of_two_parents_is_refused() -> None:
    features, labels, fold = rows()
    arrays = fit_trees(features, labels, fold, rounds=2)[0].arrays
    shared = arrays.left.copy()
    shared[0] = arrays.right[0]
    with pytest.raises(ValueError, match="are no trees"):
        Trees(arrays._replace(left=shared), features=4, heads=2)
