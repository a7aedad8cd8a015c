"""Outcomes of a catalogue's tiers by complexity class, with the number of compared answers."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from classifier.complexity.classes import Complexity
from classifier.complexity.prior import adequacies
from classifier.local.cells import moved_table
from classifier.local.tenant_cells import N0_CATALOGUE

Float = npt.NDArray[np.float32]


class ClassTable(NamedTuple):
    """`p` [4, tiers - 1]: P(the tier's answer is as good as the strongest's) by class. `labels` and `good` [4, tiers -
    1]: the number of compared answers to prompts of the class, and of those as good; all float32."""

    p: Float
    labels: Float
    good: Float

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
