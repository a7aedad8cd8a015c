"""Count cells: each cell's estimate is its parent's, moved by the cell's labels.

Where a prompt is in one cell at most (`group_shifts`), p = (n0 p_parent + good) / (n0 + n) with weighted counts, which
is p_parent plus the weighted sum of the labels' residuals over (n0 + n). A prompt that may be of several classes is in
all of them by their probabilities, and in a cell of all prompts (`ClassCells`). The shifts are then those of one ridge
regression of the residuals on a constant and the probabilities, with penalty n0 on each. For certain classes, the shift
of a class is the formula's with the shift of all prompts added to p_parent, and the other way round.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float32]
Int = npt.NDArray[np.int32]


@dataclass(frozen=True)
class ClassCells:
    """A cell for all prompts, then one for each of the four complexity classes. float32 `shift` [5, tiers - 1]."""

    shift: Float

    @classmethod
    def fit(cls, classes: Float, residual: Float, told: Float, n0: float) -> tuple["ClassCells", Float]:
        """Fit the cells on labels with `classes` [n, 4], weights `told` and the parent's `residual` [n, tiers - 1].
        Also return the leave-one-out shift of each label's prompt [n, tiers - 1]."""
        inputs = _with_all(classes).astype(np.float64)
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

    `classes` [n, 4] of the labelled prompts; `scores` [n, tiers - 1], NaN where their weight `told` is 0; the table
    counts for `n0` labels.
    """
    cells, _ = ClassCells.fit(classes, np.nan_to_num(scores) - classes @ table, told, n0)
    moved: Float = np.clip(table + cells.table(), 0.0, 1.0)
    return moved


def _with_all(classes: Float) -> Float:
    return np.concatenate((np.ones((len(classes), 1), np.float32), classes), axis=1)


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
