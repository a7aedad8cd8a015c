"""P(a tier's answer is as good as the strongest's) from the class prior and a catalogue's own labels.

Each stage fits the residuals of the one before: the prior table; cells of the catalogue, by class; cells of the key and
of its system prompt; a kernel head of the key. The head's share is the improvement of leave-one-out prediction on the
key's labels (Bayesian model averaging over leave-one-out squared errors).

A linear head over all keys was tried: within a key that it was not fitted on, it ranks prompts no better than the
cells.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from classifier.local.cells import ClassCells, group_shifts, moved_table
from classifier.local.kernel_head import KernelHead
from classifier.local.labels import Labels

Float = npt.NDArray[np.float32]

# Pseudo-counts of the parent estimate: of the prior table, the catalogue's cells, the key's cells.
N0_CATALOGUE, N0_KEY, N0_CONTEXT = 10.0, 20.0, 20.0
# A key has a kernel head from this many labels on, fitted on at most this many of the newest.
LEAST_FOR_HEAD, MOST_FOR_HEAD = 16, 512


@dataclass(frozen=True)
class Estimate:
    """`p_ok` [tiers - 1] in [0, 1]; `labels` and `good` [tiers - 1]: the number of labelled prompts like this one, by
    class and for this key (for all keys together, if it has none), and of those as good."""

    p_ok: Float
    labels: Float
    good: Float


@dataclass(frozen=True)
class _Stages:
    """All stages for one key, summed: `table` [4, tiers - 1] by class, `contexts` [c, tiers - 1] by system prompt, and
    the kernel head's part. `seen` and `good` [4, tiers - 1] count labels by class."""

    table: Float
    contexts: Float
    head: KernelHead | None
    seen: Float
    good: Float


class LocalEstimator:
    """Immutable, thread-safe."""

    def __init__(self, labels: Labels, table: Float, since: int = 0) -> None:
        """`table` [4, tiers - 1]: the estimate by class without these labels. The first `since` labels are already part
        of it and move only the keys' cells."""
        told = labels.told
        table = learned_table(labels.take(np.arange(since, len(labels))), table)
        none = np.zeros((0, told.shape[1]), np.float32)
        self._catalogue = _Stages(table, none, None, *_counts(labels))
        self._keys, self._labels = {}, np.bincount(labels.key)
        for key in np.unique(labels.key):
            own = labels.take(np.flatnonzero(labels.key == key)[-MOST_FOR_HEAD:])
            self._keys[int(key)] = _stages(own, table)

    def estimate(self, classes: Float, embedding: Float, surface: Float, key: int, context: int) -> Estimate:
        """Estimate for a prompt of these `classes` [4], `embedding` [d] and `surface` features [f]; a `key` or
        `context` without labels gets its parent's estimate."""
        stages = self._keys.get(key, self._catalogue)
        score = self.score(classes, embedding, surface, key, context)
        return Estimate(np.minimum(np.maximum(score, 0.0), 1.0), classes @ stages.seen, classes @ stages.good)

    def labels_of(self, key: int) -> int:
        """Return the number of labels of `key`; a negative key has none."""
        return int(self._labels[key]) if 0 <= key < len(self._labels) else 0

    def score(self, classes: Float, embedding: Float, surface: Float, key: int, context: int) -> Float:
        """Return the expected scores [..., tiers - 1] of one prompt or of many, not clipped to [0, 1]."""
        stages = self._keys.get(key, self._catalogue)
        found: Float = classes @ stages.table
        if 0 <= context < len(stages.contexts):
            found = found + stages.contexts[context]
        return found if stages.head is None else found + stages.head.shift(embedding, surface)


def learned_table(labels: Labels, table: Float) -> Float:
    """Return `table` [4, tiers - 1] moved by the labels of a whole catalogue."""
    return moved_table(table, labels.classes, labels.scores, labels.told, N0_CATALOGUE)


def _stages(own: Labels, table: Float) -> _Stages:
    told = own.told
    residual = np.nan_to_num(own.scores) - own.classes @ table
    cells, expected = ClassCells.fit(own.classes, residual, told, N0_KEY)
    left, unseen = residual - own.classes @ cells.table(), residual - expected
    contexts, expected = group_shifts(own.context, int(own.context.max(initial=-1)) + 1, left, told, N0_CONTEXT)
    inside = own.context >= 0
    left[inside] -= contexts[own.context[inside]]
    unseen = unseen - expected
    head = None
    if len(own) >= LEAST_FOR_HEAD:
        whole, expected = KernelHead.fit(own.embedding, own.surface, left, told)
        head = whole.times(_share(unseen, unseen - expected, own.scores, told))
    return _Stages(table + cells.table(), contexts, head, *_counts(own))


def _counts(labels: Labels) -> tuple[Float, Float]:
    told = labels.told
    return labels.classes.T @ told, labels.classes.T @ (told * np.nan_to_num(labels.scores))


def _share(without: Float, with_head: Float, scores: Float, told: Float) -> Float:
    """Return [tiers - 1] in [0, 1]: the head's posterior, from the leave-one-out residuals without and with the head
    [n, tiers - 1]; the error variance is assumed to be that of the labels."""
    total = np.maximum(told.sum(axis=0), 1e-6)
    mean = (told * np.nan_to_num(scores)).sum(axis=0) / total
    spread = (told * np.nan_to_num(scores - mean) ** 2).sum(axis=0) / total
    gain = (told * (without**2 - with_head**2)).sum(axis=0) / (2 * np.maximum(spread, 0.01))
    share: Float = (1.0 / (1.0 + np.exp(-np.clip(gain, -30, 30)))).astype(np.float32)
    return share
