"""Changes of a tier's answers: outcomes from before one tell which prompts are hard, no longer how often it fails."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from classifier.training.encoded_rows import EncodedRows

Bool = npt.NDArray[np.bool_]
Changes = Mapping[int, Bool]
"""By number of a tier whose answers have changed: which of n new rows [n] are from before. All base rows are."""


def outdated(shape: tuple[int, ...], changes: Changes) -> Bool:
    """Which labels of `shape` [base rows + n, heads], the n new rows last, are from before the change of their tier:
    those of both kinds of outcome."""
    found = np.zeros(shape, np.bool_)
    for tier, old in changes.items():
        for head in (tier - 1, shape[1] // 2 + tier - 1):
            found[: shape[0] - len(old), head] = True
            found[shape[0] - len(old) :, head] = old
    return found


def up_to_date(rows: EncodedRows, changes: Changes) -> EncodedRows:
    """`rows`, of which the last are the new ones of `changes`, without the labels that are outdated."""
    kept = np.where(outdated(rows.labels.shape, changes), np.float32(np.nan), rows.labels)
    return replace(rows, labels=kept)


def of_rows(changes: Changes, rows: npt.NDArray[np.generic]) -> Changes:
    """The same changes for some of the new rows (a mask or indices)."""
    return {tier: old[rows] for tier, old in changes.items()}
