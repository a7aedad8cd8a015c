"""P(a tier's answer is as good as the strongest's) from the class prior and a catalogue's own labels.

Each stage learns what the one before missed: the prior table; labels without a tenant, by class; cells of all other
tenants, in which none outweighs the others (`classifier.local.tenant_cells`); the caller's tenant, by class; cells of
the key and of its system prompt; a kernel head of the key. The head's share is the improvement of leave-one-out
prediction on the key's labels (Bayesian model averaging over leave-one-out squared errors).

A linear head over all keys was tried: within a key that it was not fitted on, it ranks prompts no better than the
cells.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from classifier.local.cells import ClassCells, group_shifts, moved_table
from classifier.local.kernel_head import KernelHead
from classifier.local.labels import Labels
from classifier.local.tenant_cells import N0_CATALOGUE, TenantCells

Float = npt.NDArray[np.float32]

# Pseudo-counts of the parent estimate: of what other tenants know, the tenant's table, the key's cells.
N0_TENANT, N0_KEY, N0_CONTEXT = 5.0, 20.0, 20.0
# A key has a kernel head from this many labels on, fitted on at most this many of the newest.
LEAST_FOR_HEAD, MOST_FOR_HEAD = 16, 512


@dataclass(frozen=True)
class Estimate:
    """`p_ok` [tiers - 1] in [0, 1]; `labels` and `good` [tiers - 1]: the number of labelled prompts like this one, by
    class and for this key, and of those as good. For a key without any: those of its tenant, else of all, each tenant's
    up to its bound."""

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

    def __init__(self, labels: Labels, table: Float, since: int = 0, keys: Collection[int] | None = None) -> None:
        """`table` [4, tiers - 1]: the estimate by class without these labels. The first `since` labels are already part
        of it, and count only for their own tenants. `keys`: those that will be asked for; None: all."""
        catalogue = _Catalogue(labels, table, since)
        none = np.zeros((0, table.shape[1]), np.float32)
        self._others = _Stages(catalogue.table(), none, None, *catalogue.counts())
        self._tenants = {
            int(tenant): _Stages(catalogue.tenants_table(tenant), none, None, *_counts(catalogue.shared_by(tenant)))
            for tenant in np.unique(labels.tenant[labels.tenant >= 0])
        }
        self._keys, self._labels = {}, np.bincount(labels.key)
        for key in np.unique(labels.key):
            if keys is None or key in keys:
                own = np.flatnonzero(labels.key == key)
                self._keys[int(key)] = _stages(labels.take(own[-MOST_FOR_HEAD:]), self._parent(catalogue, int(key)))

    def _parent(self, catalogue: "_Catalogue", key: int) -> Float:
        """Return the table [4, tiers - 1] above the cells of `key`."""
        tenant = catalogue.tenant_of(key)
        if tenant in self._tenants and not catalogue.has_private(key):
            return self._tenants[tenant].table
        return catalogue.tenants_table(tenant, key)

    def estimate(
        self, classes: Float, embedding: Float, surface: Float, key: int, context: int, tenant: int = -1
    ) -> Estimate:
        """Estimate for a prompt of these `classes` [4], `embedding` [d] and `surface` features [f]; a `key`, `context`
        or `tenant` without labels gets its parent's estimate."""
        stages = self._stages_of(key, tenant)
        score = self.score(classes, embedding, surface, key, context, tenant)
        return Estimate(np.minimum(np.maximum(score, 0.0), 1.0), classes @ stages.seen, classes @ stages.good)

    def labels_of(self, key: int) -> int:
        """Return the number of labels of `key`; a negative key has none."""
        return int(self._labels[key]) if 0 <= key < len(self._labels) else 0

    def score(
        self, classes: Float, embedding: Float, surface: Float, key: int, context: int, tenant: int = -1
    ) -> Float:
        """Return the expected scores [..., tiers - 1] of one prompt or of many, not clipped to [0, 1]."""
        stages = self._stages_of(key, tenant)
        found: Float = classes @ stages.table
        if 0 <= context < len(stages.contexts):
            found = found + stages.contexts[context]
        return found if stages.head is None else found + stages.head.shift(embedding, surface)

    def _stages_of(self, key: int, tenant: int) -> _Stages:
        return self._keys.get(key) or self._tenants.get(tenant, self._others)


class _Catalogue:
    """All labels of a catalogue, and the tables by class that each tenant has of them."""

    def __init__(self, labels: Labels, table: Float, since: int) -> None:
        self._labels, self._table = labels, table
        self._new = np.arange(len(labels)) >= since
        self._open = labels.tenant < 0
        shared = ~labels.private
        self._cells = TenantCells.fit(labels.take(self._new & shared & ~self._open))
        self._base = self._moved_by(self._new & shared & self._open)

    def table(self, without: int = -1) -> Float:
        """Return what callers without labels have: all but the tenant `without`."""
        return self._cells.table(self._base, without)

    def counts(self) -> tuple[Float, Float]:
        """Return the weight of labels behind `table` [4, tiers - 1], and of those as good."""
        seen, good = self._cells.counts()
        keyless = _counts(self._labels.take(self._open & ~self._labels.private))
        return (seen + keyless[0]).astype(np.float32), (good + keyless[1]).astype(np.float32)

    def tenant_of(self, key: int) -> int:
        return int(self._labels.tenant[self._labels.key == key][0])

    def has_private(self, key: int) -> bool:
        return bool(self._labels.private[self._labels.key == key].any())

    def shared_by(self, tenant: int) -> Labels:
        """Return what all keys of `tenant` learn from."""
        return self._labels.take((self._labels.tenant == tenant) & ~self._labels.private)

    def tenants_table(self, tenant: int, key: int = -1) -> Float:
        """Return the table for callers of `tenant`, with the private labels of `key`."""
        private = self._labels.private & (self._labels.key == key)
        if tenant < 0:
            return self._cells.table(self._moved_by(self._open & (private | self._new & ~self._labels.private)))
        mine = self._labels.take((self._labels.tenant == tenant) & (private | ~self._labels.private))
        return moved_table(self.table(without=tenant), mine.classes, mine.scores, mine.told, N0_TENANT)

    def _moved_by(self, rows: npt.NDArray[np.bool_]) -> Float:
        known = self._labels.take(rows)
        return moved_table(self._table, known.classes, known.scores, known.told, N0_CATALOGUE)


def learned_table(labels: Labels, table: Float) -> Float:
    """Return `table` [4, tiers - 1] moved by the labels of a whole catalogue, as a tenant without labels has it."""
    return _Catalogue(labels, table, 0).table()


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
