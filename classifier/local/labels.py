"""Labelled prompts as columns: outcomes of a catalogue's own answers."""

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float32]
Int = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Labels:
    """n labelled prompts, oldest first; float32 unless stated.

    `classes` [n, 4] is P of each complexity class; `embedding` [n, d] of unit length; `surface` [n, f] standardised
    features. `scores` [n, tiers - 1]: tier k's answer compared with the strongest tier's, 1 as good, 0 worse, NaN
    unobserved; outside [0, 1] where the judge errs, and right on average. `weights` [n, tiers - 1], at least 0: of each
    label, 1 for a certain one. int32 `key` and `context` [n] number the keys, and
    the system prompts of keys (-1: none). int32 `tenant` [n] numbers whose the keys are; -1: none, such as labels
    without a key, whose weight for others has no bound. bool `private` [n]: counts for its own key alone.
    """

    classes: Float
    embedding: Float
    surface: Float
    scores: Float
    weights: Float
    key: Int
    context: Int
    tenant: Int
    private: npt.NDArray[np.bool_]

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
