"""P(a tier's answer is as good as the strongest's) from the class prior and a catalogue's own labels.

Each stage learns what the one before missed: the prior table; labels without a tenant, by class; cells of all other
tenants, in which none outweighs the others (`classifier.local.cells`); the caller's tenant, by class; cells of the key
and of its system prompt; a kernel head of the key. The cells are averaged with the key's own rate, to which the parent
gives pseudo-counts: unlike the cells it forgets a parent that orders prompts wrongly. The shares of cells and rate,
and that of the head, are by the improvement of leave-one-out prediction on the key's labels (Bayesian model averaging
over leave-one-out squared errors), in which the parent has not seen the label either.

The table goes by the classes of the request, and what labels teach by class by those of the whole turn, with the
material that it brings: a table is of what is asked, and tasks may differ in their data alone.

The head of a key is Gaussian-process regression of the cells' residuals on embedding and surface features (Rasmussen
and Williams, Gaussian Processes for Machine Learning, 2006, equations 2.25 and 5.12). A version with a head over all
keys (`classifier.model.learned`) has it in place of the table: each cell's parent is then what the head says.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from threading import Lock

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController

from classifier.local.cells import N0_CATALOGUE, ClassCells, Labels, TenantCells, group_shifts
from classifier.model.learned import LearnedHead

Float = npt.NDArray[np.float32]

# Mean squared distance per standardised feature at which the similarity of two prompts is 1/e.
_WIDTH = 0.3
# Variance of a label around its expectation, relative to the prior variance of the head.
_NOISE = 1.0
# One number for the whole process: a second block at the same time would restore what the first one has set.
_lock = Lock()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Within the block numpy's matrix products use one thread, in the whole process; blocks come one after another.
    Threads of BLAS spin while they wait for each other, which on busy cores costs many times the processor time of the
    fit itself."""
    with _lock, _controller().limit(limits=1, user_api="blas"):
        yield


@cache
def _controller() -> ThreadpoolController:
    # Not at import: it looks through all loaded libraries, which takes milliseconds.
    return ThreadpoolController()


@dataclass(frozen=True)
class KernelHead:
    """float32 `embedding` [n, d] and `surface` [n, f] of the labelled prompts, and their `coefficients` [n, tiers - 1]:
    a mean of the labels' residuals weighted by similarity."""

    embedding: Float
    surface: Float
    squares: Float
    coefficients: Float

    @classmethod
    def fit(cls, embedding: Float, surface: Float, residual: Float, told: Float) -> tuple["KernelHead", Float]:
        """Fit the head on `residual` [n, tiers - 1] of labels with weights `told`; also return its leave-one-out
        prediction for each label's prompt [n, tiers - 1]."""
        alike = alikeness(embedding, surface, embedding, surface, (surface * surface).mean(axis=1)).astype(np.float64)
        coefficients, others = np.zeros(residual.shape), np.zeros(residual.shape)
        for tier in range(residual.shape[1]):
            seen = np.flatnonzero(told[:, tier] > 0)
            noisy = alike[np.ix_(seen, seen)] + np.diag(_NOISE / told[seen, tier])
            inverse = np.linalg.inv(noisy)
            solution = inverse @ residual[seen, tier]
            coefficients[seen, tier] = solution
            others[seen, tier] = residual[seen, tier] - solution / np.diag(inverse)
        head = cls(
            embedding, surface, (surface * surface).mean(axis=1).astype(np.float32), coefficients.astype(np.float32)
        )
        return head, others.astype(np.float32)

    def times(self, share: Float) -> "KernelHead":
        """Return this head scaled by `share` [tiers - 1]."""
        return replace(self, coefficients=self.coefficients * share)

    def shift(self, embedding: Float, surface: Float) -> Float:
        """Return [..., tiers - 1]: the shift of prompts with `embedding` [..., d] and `surface` [..., f]."""
        shift: Float = alikeness(embedding, surface, self.embedding, self.surface, self.squares) @ self.coefficients
        return shift


def alikeness(embedding: Float, surface: Float, others: Float, surfaces: Float, squares: Float) -> Float:
    """Return [..., n] in [-0.5, 1]: the similarity of prompts to n `others`, of mean squared features `squares` [n]."""
    features = surface.shape[-1]
    apart = (surface * surface).mean(axis=-1)[..., None] + squares - (2.0 / features) * (surface @ surfaces.T)
    similarity: Float = (embedding @ others.T + np.exp(apart / np.float32(-_WIDTH))) / np.float32(2)
    return similarity


# Pseudo-counts of the parent estimate: of what other tenants know, the tenant's table, the key's cells; of the
# tenant's estimate in the key's rate.
N0_TENANT, N0_KEY, N0_CONTEXT, N0_RATE = 5.0, 20.0, 20.0, 10.0
# A key has a kernel head from this many labels on, fitted on at most this many of the newest.
LEAST_FOR_HEAD, MOST_FOR_HEAD = 16, 512


@dataclass(frozen=True)
class Estimate:
    """What the labels of one prompt's class and key say. Without any, labels of its tenant count, else of all, each
    tenant's up to its bound.
    """

    p_ok: Float
    """[tiers - 1] in [0, 1]."""
    labels: Float
    """[tiers - 1]: the labelled prompts like this one, by class and for this key."""
    good: Float
    """[tiers - 1]: how many of those were as good."""


@dataclass(frozen=True)
class Parent:
    """The estimate above some labels: the sum over the whole turn's classes of `table` [4, tiers - 1], and of `share`
    [4, tiers - 1] times what the `head` over all keys says, where there is one. Without one, the share goes to what
    `prior` [4, tiers - 1], which is in the table, says more of the request's classes than of the whole turn's."""

    table: Float
    share: Float
    prior: Float
    head: LearnedHead | None

    @classmethod
    def without_labels(cls, table: Float, head: LearnedHead | None) -> "Parent":
        return cls(table if head is None else np.zeros_like(table), np.ones_like(table), table, head)

    def of(self, classes: Float, whole: Float, embedding: Float, surface: Float) -> Float:
        """Return the expected scores [..., tiers - 1] of prompts; `whole` is `classes` where no prompt has material."""
        expected: Float = whole @ self.table
        if self.head is not None:
            return expected + (whole @ self.share) * self.head.p(classes, embedding, surface)
        if whole is classes:
            return expected
        apart: Float = np.subtract(classes, whole) @ self.prior
        return expected + (whole @ self.share) * apart

    def of_labels(self, labels: Labels) -> Float:
        """Return the expected scores [n, tiers - 1] of the prompts of `labels`."""
        return self.of(labels.classes, labels.whole, labels.embedding, labels.surface)

    def moved_by(self, labels: Labels, n0: float) -> tuple["Parent", Float]:
        """Return this moved by labels of one tenant, or by those without one; and the change of the estimate of each
        label's prompt [n, tiers - 1] without this label."""
        residual = np.nan_to_num(labels.scores) - self.of_labels(labels)
        cells, others = ClassCells.fit(labels.whole, residual, labels.told, n0)
        moved = self.plus(cells)
        # With material a sum outside [0, 1] may be right: the prior of another request is added to it.
        if self.head is None and (labels.whole == labels.classes).all():
            moved = replace(moved, table=np.clip(moved.table, 0.0, 1.0))
        return moved, others - labels.whole @ cells.table()

    def moved_by_tenants(self, cells: TenantCells, without: int) -> "Parent":
        """Return this moved by the labels of all tenants but `without`."""
        none = replace(cells, good=np.zeros_like(cells.good))
        return replace(self, table=cells.table(self.table, without), share=none.table(self.share, without))

    def plus(self, cells: ClassCells) -> "Parent":
        return replace(self, table=self.table + cells.table())

    def mixed(self, cells: ClassCells, share: Float, rate: "_Rate") -> "Parent":
        """Return `share` [tiers - 1] of this with `cells`, and for the rest the key's `rate`, whose parent this is."""
        kept = share + (1 - share) * rate.parents_share
        added = share * cells.table() + (1 - share) * rate.own_part
        return replace(self, table=self.table * kept + added, share=self.share * kept)


@dataclass(frozen=True)
class _Rate:
    """The rate of a key's labels, with pseudo-counts of the parent: `parents_share` [tiers - 1] of the parent's
    estimate, plus `own_part` [tiers - 1].
    """

    parents_share: Float
    own_part: Float
    others: Float
    """[n, tiers - 1]: what the other labels say of each label's prompt."""

    @classmethod
    def fit(cls, scores: Float, expected: Float, told: Float) -> "_Rate":
        """Fit on `scores` with weights `told`, where the parent, without each label, `expected`; all [n, tiers - 1]."""
        good = told * np.nan_to_num(scores)
        whole = N0_RATE + told.sum(axis=0)
        others = (N0_RATE * expected + good.sum(axis=0) - good) / (whole - told)
        return cls(N0_RATE / whole, good.sum(axis=0) / whole, others)


@dataclass(frozen=True)
class _Stages:
    """All stages for one key: `parent` with the cells by class, `contexts` [c, tiers - 1] by system prompt, and the
    kernel head's part.
    """

    parent: Parent
    contexts: Float
    head: KernelHead | None
    seen: Float
    """[4, tiers - 1]: labels by class."""
    good: Float
    """[4, tiers - 1]: good labels by class."""


class LocalEstimator:
    """Immutable, thread-safe."""

    @one_blas_thread()
    def __init__(
        self,
        labels: Labels,
        table: Float,
        since: int = 0,
        keys: Collection[int] | None = None,
        head: LearnedHead | None = None,
        apart: bool = False,
    ) -> None:
        """`table` [4, tiers - 1]: the estimate by class without these labels; `head`: one that replaces it. The first
        `since` labels are already part of it, and count only for their own tenants. `keys`: those that will be asked
        for; None: all. `apart`: no tenant's labels count for another."""
        catalogue = Catalogue(labels, Parent.without_labels(table, head), since, apart)
        none = np.zeros((0, table.shape[1]), np.float32)
        self._others = _Stages(catalogue.parent(), none, None, *catalogue.counts())
        of_tenants = {int(tenant): catalogue.tenants_parent(tenant) for tenant in np.unique(labels.tenant)}
        self._tenants = {
            tenant: _Stages(parent, none, None, *_counts(catalogue.shared_by(tenant)))
            for tenant, (parent, _) in of_tenants.items()
            if tenant >= 0
        }
        self._keys, self._labels = {}, np.bincount(labels.key)
        for key in np.unique(labels.key):
            if keys is None or key in keys:
                own, tenant = np.flatnonzero(labels.key == key), catalogue.tenant_of(key)
                private = catalogue.has_private(key)
                parent, without = catalogue.tenants_parent(tenant, key) if private else of_tenants[tenant]
                self._keys[int(key)] = _stages(labels.take(own), parent, without[own])

    def estimate(
        self,
        classes: Float,
        embedding: Float,
        surface: Float,
        key: int,
        context: int,
        tenant: int = -1,
        whole: Float | None = None,
    ) -> Estimate:
        """Estimate for a prompt of these `classes` [4], `embedding` [d] and `surface` features [f]; a `key`, `context`
        or `tenant` without labels gets its parent's estimate. `whole` [4]: the classes of the whole turn, None where it
        brings no material."""
        stages, by_class = self._stages_of(key, tenant), classes if whole is None else whole
        score = self.score(classes, embedding, surface, key, context, tenant, by_class)
        return Estimate(np.minimum(np.maximum(score, 0.0), 1.0), by_class @ stages.seen, by_class @ stages.good)

    def labels_of(self, key: int) -> int:
        """Return the number of labels of `key`; a negative key has none."""
        return int(self._labels[key]) if 0 <= key < len(self._labels) else 0

    def score(
        self,
        classes: Float,
        embedding: Float,
        surface: Float,
        key: int,
        context: int,
        tenant: int = -1,
        whole: Float | None = None,
    ) -> Float:
        """Return the expected scores [..., tiers - 1] of one prompt or of many, not clipped to [0, 1]."""
        stages = self._stages_of(key, tenant)
        scores = stages.parent.of(classes, classes if whole is None else whole, embedding, surface)
        if 0 <= context < len(stages.contexts):
            scores = scores + stages.contexts[context]
        return scores if stages.head is None else scores + stages.head.shift(embedding, surface)

    def _stages_of(self, key: int, tenant: int) -> _Stages:
        return self._keys.get(key) or self._tenants.get(tenant, self._others)


class Catalogue:
    """All labels of a catalogue, and the estimate that each tenant has of them."""

    def __init__(self, labels: Labels, shipped: Parent, since: int, apart: bool = False) -> None:
        self._labels, self._shipped = labels, shipped
        self._new = np.arange(len(labels)) >= since
        self._open = labels.tenant < 0
        shared = ~labels.private
        self._cells = TenantCells.fit(labels.take(self._new & shared & ~self._open & (not apart)))
        self._base, _ = self._moved_by(self._new & shared & self._open)

    def parent(self, without: int = -1) -> Parent:
        """Return what callers without labels have: all but the tenant `without`."""
        return self._base.moved_by_tenants(self._cells, without)

    def counts(self) -> tuple[Float, Float]:
        """Return the weight of labels behind `parent` [4, tiers - 1], and of those as good."""
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

    def tenants_parent(self, tenant: int, key: int = -1) -> tuple[Parent, Float]:
        """Return the estimate for callers of `tenant`, with the private labels of `key`; and the change of its estimate
        of the prompt of each of all labels [n, tiers - 1] without this label: 0 where it has not seen it."""
        private = self._labels.private & (self._labels.key == key)
        without = np.zeros(self._labels.scores.shape, np.float32)
        if tenant < 0:
            mine = self._open & (private | self._new & ~self._labels.private)
            base, without[mine] = self._moved_by(mine)
            seen, _ = self._cells.counts()
            without *= self._labels.whole @ (N0_CATALOGUE / (N0_CATALOGUE + seen)).astype(np.float32)
            return base.moved_by_tenants(self._cells, -1), without
        mine = (self._labels.tenant == tenant) & (private | ~self._labels.private)
        parent, without[mine] = self.parent(without=tenant).moved_by(self._labels.take(mine), N0_TENANT)
        return parent, without

    def _moved_by(self, rows: npt.NDArray[np.bool_]) -> tuple[Parent, Float]:
        return self._shipped.moved_by(self._labels.take(rows), N0_CATALOGUE)


def learned_table(labels: Labels, table: Float) -> Float:
    """Return `table` [4, tiers - 1] moved by the labels of a whole catalogue, as a tenant without labels has it; like
    every table, by the classes of requests."""
    return Catalogue(replace(labels, whole=labels.classes), Parent.without_labels(table, None), 0).parent().table


def _stages(own: Labels, parent: Parent, without: Float) -> _Stages:
    """Fit all stages of a key on its `own` labels; `without` [n, tiers - 1]: the change of the parent's estimate of
    each label's prompt without this label."""
    told, scores = own.told, np.nan_to_num(own.scores)
    above = parent.of_labels(own)
    cells, expected = ClassCells.fit(own.whole, scores - above, told, N0_KEY)
    rate = _Rate.fit(own.scores, above + without, told)
    by_cells, by_rate = scores - above - without - expected, scores - rate.others
    cells_share = _share(by_rate, by_cells, own.scores, told)
    mixed = parent.mixed(cells, cells_share, rate)
    left = scores - mixed.of_labels(own)
    unseen = cells_share * by_cells + (1 - cells_share) * by_rate
    contexts, expected = group_shifts(own.context, int(own.context.max(initial=-1)) + 1, left, told, N0_CONTEXT)
    inside = own.context >= 0
    left[inside] -= contexts[own.context[inside]]
    unseen = unseen - expected
    head = None
    if len(own) >= LEAST_FOR_HEAD:
        new = slice(-MOST_FOR_HEAD, None)
        whole, expected = KernelHead.fit(own.embedding[new], own.surface[new], left[new], told[new])
        head = whole.times(_share(unseen[new], unseen[new] - expected, own.scores[new], told[new]))
    return _Stages(mixed, contexts, head, *_counts(own))


def _counts(labels: Labels) -> tuple[Float, Float]:
    told = labels.told
    return labels.whole.T @ told, labels.whole.T @ (told * np.nan_to_num(labels.scores))


def _share(without: Float, with_it: Float, scores: Float, told: Float) -> Float:
    """Return [tiers - 1] in [0, 1]: the posterior of an estimate against another, from the leave-one-out residuals of
    the other and its own [n, tiers - 1]; the error variance is assumed to be that of the labels."""
    total = np.maximum(told.sum(axis=0), 1e-6)
    mean = (told * np.nan_to_num(scores)).sum(axis=0) / total
    spread = (told * np.nan_to_num(scores - mean) ** 2).sum(axis=0) / total
    gain = (told * (without**2 - with_it**2)).sum(axis=0) / (2 * np.maximum(spread, 0.01))
    share: Float = (1.0 / (1.0 + np.exp(-np.clip(gain, -30, 30)))).astype(np.float32)
    return share
