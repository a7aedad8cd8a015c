"""Folds that keep related prompts together, so that a label is predicted without those of prompts like it.

Stored rows have no text. What stands for it is the embedding: equal texts have equal ones, and numbers and names that
are not in the encoder's vocabulary change them little. Prompts within a cosine of `ALIKE` are related, and so are
chains of them, whatever their system prompts. A group of more than a fold's share is a template that future prompts
share: only equal ones of it stay together, and if these are still so many, none.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.intp]

# In cross-validation each label is predicted from those of the other folds.
FOLDS = 4
# Cosines of related prompts, the least first. Of recorded pairs of prompts that are equal but for their numbers, chains
# of 0.999 join 65%, and about as many other pairs of one task. At 0.9 folds are of whole tasks, and no repetition.
ALIKE = (0.999, 0.9999)
_BLOCK = 512


def related_folds(embedding: Float) -> npt.NDArray[np.uint8]:
    """Return the fold [n] of each prompt by its `embedding` [n, d]: related prompts share one, and the folds are as
    even as that allows. Deterministic."""
    groups = related(embedding)
    sizes = np.bincount(groups, minlength=1)
    folds, held = np.zeros(len(sizes), np.uint8), np.zeros(FOLDS, np.intp)
    for group in np.argsort(-sizes, kind="stable"):
        folds[group] = np.argmin(held)
        held[folds[group]] += sizes[group]
    return folds[groups]


def related(embedding: Float) -> Numbers:
    """Return the number [n] of each prompt's group, from 0 on in the order of the prompts."""
    length = np.linalg.norm(embedding, axis=1, keepdims=True)
    found = _groups(embedding / np.maximum(length, np.float32(1e-9)), ALIKE, len(embedding) // FOLDS)
    _, first, numbers = np.unique(found, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[numbers]


def _groups(unit: Float, alike: Sequence[float], most: int) -> Numbers:
    """Return the group [n] of each row, by the index of one of its rows; of more than `most` rows they are those of the
    next of `alike`."""
    if not alike:
        return np.arange(len(unit))
    group = _chained(unit, alike[0])
    for number in np.flatnonzero(np.bincount(group, minlength=1) > most):
        rows = np.flatnonzero(group == number)
        group[rows] = rows[_groups(unit[rows], alike[1:], most)]
    return group


def _chained(unit: Float, least: float) -> Numbers:
    """Return the least index [n] of the rows that each is joined to, by chains of cosines of at least `least`."""
    group = np.arange(len(unit))
    for start in range(0, len(unit), _BLOCK):
        near = unit[start : start + _BLOCK] @ unit[start:].T >= least
        for row in near:
            joined = np.unique(group[start:][row])
            if len(joined) > 1:
                group[np.isin(group, joined)] = joined[0]
    return group
