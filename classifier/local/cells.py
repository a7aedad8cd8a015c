"""Labels of a catalogue's own answers, and count cells: each cell's estimate is its parent's, moved by its labels.

Where a prompt is in one cell at most (`group_shifts`), p = (n0 p_parent + good) / (n0 + n) with weighted counts, which
is p_parent plus the weighted sum of the labels' residuals over (n0 + n). A prompt that may be of several classes is in
all of them by their probabilities, and in a cell of all prompts (`ClassCells`). The shifts are then those of one ridge
regression of the residuals on a constant and the probabilities, with penalty n0 on each. For certain classes, the
shift of a class is the formula's with the shift of all prompts added to p_parent, and the other way round.

In cells by tenant and class no tenant outweighs the others. Per tier and class, p = (n0 p_parent + sum of w_t m_t) /
(n0 + sum of w_t) over the tenants t, where m_t is the share of good answers among the tenant's labels and w_t the
number of these labels, at most `MOST_WEIGHT`. All shares lie in [0, 1], so one tenant, whatever and however many its
labels, moves p by at most w_t / (n0 + w_t) <= `LABELS_BOUND`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from classifier.complexity.classes import Complexity, adequacies

Float = npt.NDArray[np.float32]
Int = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Labels:
    """n labelled prompts, oldest first; float32 unless stated."""

    classes: Float
    """[n, 4]: P of each complexity class of the request."""
    whole: Float
    """[n, 4]: P of each complexity class of the whole turn, with the material that it brings."""
    embedding: Float
    """[n, d] of unit length."""
    surface: Float
    """[n, f] standardised features."""
    scores: Float
    """[n, tiers - 1]: tier k's answer compared with the strongest tier's, 1 as good, 0 worse, NaN unobserved; outside
    [0, 1] where the judge errs, and right on average.
    """
    weights: Float
    """[n, tiers - 1], at least 0: the weight of each label, 1 for a certain one."""
    key: Int
    """int32 [n]: number of the key."""
    context: Int
    """int32 [n]: number of the key's system prompt; -1 for none."""
    tenant: Int
    """int32 [n]: number of the tenant whose the key is. -1 for none, such as labels without a key, whose weight for
    others has no bound.
    """
    private: npt.NDArray[np.bool_]
    """bool [n]: whether the label counts for its own key alone."""

    def __post_init__(self) -> None:
        sizes = {field.name: len(getattr(self, field.name)) for field in fields(self)}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"labels disagree in length: {sizes}")

    def __len__(self) -> int:
        return len(self.key)

    @property
    def told(self) -> Float:
        """Return [n, tiers - 1]: the weight of each observation, 0 where there is none."""
        told: Float = np.where(np.isnan(self.scores), np.float32(0), self.weights).astype(np.float32)
        return told

    def take(self, rows: npt.NDArray[np.generic]) -> "Labels":
        """Return the chosen rows (a mask or indices)."""
        return Labels(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})


# Pseudo-counts of the estimate that a catalogue begins with.
N0_CATALOGUE = 10.0
# Most weight of one tenant in a cell that others use.
MOST_WEIGHT = N0_CATALOGUE / 5
# Most that the labels of one tenant move a probability of a caller of another tenant. A table that was retrained has
# them once, and labels since then once more: still less than one tenant of weight n0 / 2 would, 1/3.
LABELS_BOUND = MOST_WEIGHT / (N0_CATALOGUE + MOST_WEIGHT)
TENANT_BOUND = 1 - (1 - LABELS_BOUND) ** 2


@dataclass(frozen=True)
class TenantCells:
    """float64 [tenants, 4, tiers - 1]: the bounded weight of each tenant's labels by class, and of those as good."""

    seen: npt.NDArray[np.float64]
    good: npt.NDArray[np.float64]

    @classmethod
    def fit(cls, labels: Labels) -> "TenantCells":
        """Count `labels`, all of a tenant (numbered from 0 on); private ones must have been left out."""
        tenants, told = int(labels.tenant.max(initial=-1)) + 1, labels.told
        seen = np.zeros((tenants, labels.whole.shape[1], told.shape[1]))
        good = np.zeros_like(seen)
        for tenant in np.unique(labels.tenant):
            mine = labels.tenant == tenant
            whole = labels.whole[mine].T.astype(np.float64)
            seen[tenant] = whole @ told[mine]
            good[tenant] = whole @ (told[mine] * np.nan_to_num(labels.scores[mine]))
        # Scores of judges that err lie outside [0, 1]; their mean must not, or one tenant could outweigh others.
        good = np.clip(good, 0.0, seen)
        share = np.minimum(1.0, MOST_WEIGHT / np.maximum(seen, MOST_WEIGHT))
        return cls(seen * share, good * share)

    def table(self, parent: Float, without: int = -1) -> Float:
        """Return `parent` [4, tiers - 1] moved by the labels of all tenants but `without`."""
        seen, good = self.counts(without)
        moved: Float = ((N0_CATALOGUE * parent + good) / (N0_CATALOGUE + seen)).astype(np.float32)
        return moved

    def counts(self, without: int = -1) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return the bounded weights by class [4, tiers - 1] of all tenants but `without`: of labels, and of good."""
        rest = np.arange(len(self.seen)) != without
        return self.seen[rest].sum(axis=0), self.good[rest].sum(axis=0)


@dataclass(frozen=True)
class ClassCells:
    """A cell for all prompts, then one for each of the four complexity classes. float32 `shift` [5, tiers - 1]."""

    shift: Float

    @classmethod
    def fit(cls, classes: Float, residual: Float, told: Float, n0: float) -> tuple["ClassCells", Float]:
        """Fit the cells on labels with `classes` [n, 4], weights `told` and the parent's `residual` [n, tiers - 1].
        Also return the leave-one-out shift of each label's prompt [n, tiers - 1]."""
        inputs = np.concatenate((np.ones((len(classes), 1), np.float32), classes), axis=1).astype(np.float64)
        shift = np.zeros((inputs.shape[1], residual.shape[1]))
        others = np.zeros(residual.shape)
        for tier in range(residual.shape[1]):
            weighted = inputs * told[:, tier, None]
            inverse = np.linalg.inv(weighted.T @ inputs + n0 * np.eye(inputs.shape[1]))
            shift[:, tier] = inverse @ (weighted.T @ residual[:, tier])
            missed = residual[:, tier] - inputs @ shift[:, tier]
            own = np.einsum("ni,ij,nj->n", weighted, inverse, inputs)
            others[:, tier] = residual[:, tier] - missed / (1.0 - own)
        return cls(shift.astype(np.float32)), others.astype(np.float32)

    def table(self) -> Float:
        """Return [4, tiers - 1]: the shift of a prompt of each class."""
        return self.shift[:1] + self.shift[1:]


def moved_table(table: Float, classes: Float, scores: Float, told: Float, n0: float) -> Float:
    """Return `table` [4, tiers - 1], P(as good) by class, moved by a catalogue's labels and clipped to [0, 1].

    `classes` [n, 4] of the labelled prompts; `scores` [n, tiers - 1], NaN where `told` is 0; the table: `n0` labels.
    """
    cells, _ = ClassCells.fit(classes, np.nan_to_num(scores) - classes @ table, told, n0)
    moved: Float = np.clip(table + cells.table(), 0.0, 1.0)
    return moved


def group_shifts(group: Int, groups: int, residual: Float, told: Float, n0: float) -> tuple[Float, Float]:
    """Return the shift of each of `groups` cells [groups, tiers - 1] by its labels (`group` [n], -1: in no cell), and
    the leave-one-out shift of each label's prompt [n, tiers - 1]."""
    inside = group >= 0
    moved = np.zeros((groups, residual.shape[1]), np.float32)
    seen = np.zeros_like(moved)
    np.add.at(moved, group[inside], (told * residual)[inside])
    np.add.at(seen, group[inside], told[inside])
    others = np.zeros_like(residual)
    at = group[inside]
    own = told[inside]
    others[inside] = (moved[at] - own * residual[inside]) / (n0 + seen[at] - own)
    return moved / np.float32(n0) / (1 + seen / np.float32(n0)), others


class ClassTable(NamedTuple):
    """Labels by complexity class, float32."""

    p: Float
    """[4, tiers - 1]: P(the tier's answer is as good as the strongest's) by class."""
    labels: Float
    """[4, tiers - 1]: the number of compared answers to prompts of the class."""
    good: Float
    """[4, tiers - 1]: how many of those were as good."""

    @property
    def measured(self) -> bool:
        """Whether any answer was compared; if not, this is the prior alone."""
        return bool(self.labels.any())


def prior_table(like: Sequence[Complexity]) -> ClassTable:
    """Return the prior of tiers `like` models of these classes, without any outcomes."""
    none = np.zeros((len(Complexity), len(like) - 1), np.float32)
    return ClassTable(adequacies(like)[:, :-1], none, none)


def whole_table(table: ClassTable) -> Float:
    """Return [4, tiers]: `table.p` with a column of ones for the strongest tier."""
    return np.concatenate((table.p, np.ones((len(table.p), 1), np.float32)), axis=1)


def measured_table(prior: ClassTable, classes: Float, as_good: Float) -> ClassTable:
    """Return `prior` moved by compared answers: `classes` [n, 4] of the prompts, `as_good` [n, tiers - 1] 1 or 0."""
    weights = np.ones_like(as_good)
    p = moved_table(prior.p, classes, as_good, weights, N0_CATALOGUE)
    return ClassTable(p, prior.labels + classes.T @ weights, prior.good + classes.T @ as_good)
