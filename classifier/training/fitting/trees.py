"""Fit boosted trees over surface features, and convert them from scikit-learn to arrays."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from sklearn.ensemble import HistGradientBoostingClassifier
from threadpoolctl import threadpool_limits

from classifier.encoders.boosted_trees import TreeArrays, Trees

Float = npt.NDArray[np.float32]

# By cross-validation within train and valid, by log loss over all outcomes; flat within a factor of two.
ROUNDS = 90
LEAVES = 8
_SHAPE = {"learning_rate": 0.1, "max_leaf_nodes": LEAVES, "min_samples_leaf": 80, "l2_regularization": 5.0}
_FEATURES_LOOKED_AT = 0.3  # share of features per split
_LEAST_ROUNDS = 1 / 3  # share of `ROUNDS` for a rarely observed outcome


def fit_trees(
    features: Float, labels: Float, fold: npt.NDArray[np.intp], *, rounds: int = ROUNDS, seed: int = 0
) -> tuple[Trees, Float]:
    """Return (trees for every head, out-of-fold logits [n, heads] by `fold`), relative to the base rate.

    `features` [n, f] as served; `labels` [n, heads] in [0, 1], soft ones too, NaN unobserved. Deterministic.
    """
    observed = (~np.isnan(labels)).sum(axis=0)
    share = np.clip(observed / max(int(observed.max()), 1), _LEAST_ROUNDS, 1.0)
    grown, unseen = [], np.zeros(labels.shape, np.float32)
    # With several threads the sums of gradients would depend on thread order.
    with threadpool_limits(1, user_api="openmp"):
        for head in range(labels.shape[1]):
            labelled, of_head = ~np.isnan(labels[:, head]), max(1, round(rounds * share[head]))
            grown += [(head, tree) for tree in _boosted(features, labels[:, head], labelled, of_head, seed)]
            for k in np.unique(fold):
                mine = fold == k
                trees = [(0, tree) for tree in _boosted(features, labels[:, head], labelled & ~mine, of_head, seed)]
                unseen[mine, head] = _joined(trees, features.shape[1], 1).logits(features[mine])[:, 0]
    return _joined(grown, features.shape[1], labels.shape[1]), unseen


def _boosted(
    features: Float, labels: Float, rows: npt.NDArray[np.bool_], rounds: int, seed: int
) -> list[npt.NDArray[np.void]]:
    """Return the node tables of trees for the rows chosen; none if all have the same label."""
    x, share = features[rows], labels[rows].astype(np.float64)
    # A soft label becomes two weighted rows, one of each kind.
    weight = np.concatenate([share, 1 - share])
    counted, right = weight > 0, np.arange(len(weight)) < len(share)
    if not len(share) or len(np.unique(right[counted])) < 2:
        return []
    model = HistGradientBoostingClassifier(
        max_iter=rounds, max_features=_FEATURES_LOOKED_AT, early_stopping=False, random_state=seed, **_SHAPE
    )
    model.fit(np.concatenate([x, x])[counted], right[counted], sample_weight=weight[counted])
    return [predictor.nodes for (predictor,) in model._predictors]


def _joined(trees: Sequence[tuple[int, npt.NDArray[np.void]]], features: int, heads: int) -> Trees:
    """Concatenate (head, table of nodes) pairs."""
    if not trees:
        return Trees.none(features=features, heads=heads)
    sizes = [len(nodes) for _, nodes in trees]
    roots = np.cumsum([0, *sizes[:-1]])
    nodes = np.concatenate([nodes for _, nodes in trees])
    own, first = np.arange(len(nodes)), np.repeat(roots, sizes)
    leaf = nodes["is_leaf"].astype(bool)
    arrays = TreeArrays(
        feature=np.where(leaf, 0, nodes["feature_idx"]).astype(np.int32),
        threshold=_at_most(np.where(leaf, 0.0, nodes["num_threshold"])),
        left=np.where(leaf, own, first + nodes["left"]).astype(np.int32),
        right=np.where(leaf, own, first + nodes["right"]).astype(np.int32),
        value=np.where(leaf, nodes["value"], 0.0).astype(np.float32),
        root=roots.astype(np.int32),
        head=np.array([head for head, _ in trees], np.int32),
    )
    return Trees(arrays, features=features, heads=heads)


def _at_most(threshold: npt.NDArray[np.float64]) -> Float:
    """Return the largest float32 that is at most `threshold`: comparisons of features then give the same results."""
    near = threshold.astype(np.float32)
    return np.where(near > threshold, np.nextafter(near, np.float32(-np.inf)), near)
