"""Boosted regression trees over surface features, as plain arrays: each tree adds its leaf's value to one logit."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from classifier.native import KERNELS

Float = npt.NDArray[np.float32]
Int = npt.NDArray[np.int32]
Tensors = Mapping[str, npt.NDArray[np.generic]]
_BATCH = 1024


class TreeArrays(NamedTuple):
    """T trees of N nodes in total. An inner node goes left if the feature is at most the threshold; a leaf is its own
    left and right child.
    """

    feature: Int
    """[N]."""
    threshold: Float
    """[N]."""
    left: Int
    """[N]: the left child."""
    right: Int
    """[N]: the right child."""
    value: Float
    """[N]."""
    root: Int
    """[T]: each tree's first node."""
    head: Int
    """[T]: the logit that each tree adds to."""


class Trees:
    """The trees of all heads. Raises ValueError for invalid arrays over `features` numbers."""

    def __init__(self, arrays: TreeArrays, *, features: int, heads: int) -> None:
        _check(arrays, features, heads)
        self.arrays, self.features, self.heads = arrays, features, heads
        self._of_head = np.equal.outer(arrays.head, np.arange(heads)).astype(np.float32)
        # For the kernels of the encoder and of the classes, which add the trees' values themselves.
        self.native = None
        if KERNELS is not None:
            self.native = KERNELS.make_trees(*map(np.ascontiguousarray, arrays), features, heads)

    @classmethod
    def none(cls, *, features: int, heads: int) -> "Trees":
        """Return an empty set of trees."""
        whole, real = np.zeros(0, np.int32), np.zeros(0, np.float32)
        return cls(TreeArrays(whole, real, whole, whole, real, whole, whole), features=features, heads=heads)

    def add_to(self, logits: Float, features: Float) -> None:
        """Add the trees' values for one row of `features` [f] to its `logits` [h]."""
        logits += self.logits(features[None])[0]

    def logits(self, features: Float) -> Float:
        """Return the trees' values [n, h] for rows of `features` [n, f]."""
        parts = [self._logits(features[i : i + _BATCH]) for i in range(0, len(features), _BATCH)]
        return np.concatenate([np.zeros((0, self.heads), np.float32), *parts])

    def _logits(self, features: Float) -> Float:
        feature, threshold, left, right, value, root, _ = self.arrays
        node, rows = np.tile(root, (len(features), 1)), np.arange(len(features))[:, None]
        while True:
            down = np.where(features[rows, feature[node]] <= threshold[node], left[node], right[node])
            if (down == node).all():
                return value[node] @ self._of_head
            node = down

    def tensors(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the arrays by name, to be saved with the encoder."""
        return {f"encoder.tree_{name}": array for name, array in self.arrays._asdict().items()}

    @classmethod
    def from_tensors(cls, tensors: Tensors, *, features: int, heads: int) -> "Trees":
        """Rebuild the trees from `tensors`. Raises KeyError for a missing one, ValueError for invalid arrays."""
        stored = {name: tensors[f"encoder.tree_{name}"] for name in TreeArrays._fields}
        arrays = TreeArrays(
            feature=stored["feature"].astype(np.int32),
            threshold=stored["threshold"].astype(np.float32),
            left=stored["left"].astype(np.int32),
            right=stored["right"].astype(np.int32),
            value=stored["value"].astype(np.float32),
            root=stored["root"].astype(np.int32),
            head=stored["head"].astype(np.int32),
        )
        return cls(arrays, features=features, heads=heads)


def _check(arrays: TreeArrays, features: int, heads: int) -> None:
    nodes = len(arrays.feature)
    if {len(a) for a in arrays[:5]} != {nodes} or len(arrays.root) != len(arrays.head):
        raise ValueError(f"trees: arrays of {[len(a) for a in arrays]} numbers do not agree")
    own = np.arange(nodes)
    leaf = (arrays.left == own) & (arrays.right == own)
    # Every child comes after its parent, so no walk loops.
    inner = (arrays.left > own) & (arrays.right > own) & (arrays.left < nodes) & (arrays.right < nodes)
    ranges = ((arrays.feature, features), (arrays.root, nodes), (arrays.head, heads))
    # A node has one parent at most, and a root none: else the trees may be far larger than their arrays.
    reached = np.concatenate((arrays.root, arrays.left[~leaf], arrays.right[~leaf]))
    is_forest = len(np.unique(reached)) == len(reached)
    if not (leaf | inner).all() or not is_forest or any(((a < 0) | (a >= limit)).any() for a, limit in ranges):
        raise ValueError(f"trees: {nodes} nodes are no trees over {features} features and {heads} heads")
