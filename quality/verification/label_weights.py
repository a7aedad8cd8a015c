"""What stored labels say of a tier's answers to all prompts: without the judge's error, and by the chance of each draw.

A judge that errs in a share e of either kind of answers says z, and (z - e) / (1 - 2 e) is right on average (Rogan and
Gladen 1978). With J = 1 - 2 e, its informedness, that has 1/J^2 of the variance, so it weighs J^2.

Answers are verified where their tier was chosen, and tiers are chosen where they are thought to be good. So each label
weighs by the inverse of its chance of being drawn (Horvitz and Thompson 1952; Hartley 1962 where two draws could have
drawn it), within bounds, since few labels of great weight say little.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float32]

# A judge of less says nothing that would be worth dividing by.
LEAST_INFORMED = 0.05
# Most weight of a label by its chance, relative to the mean of its key and tier.
MOST_BY_CHANCE = 4.0


def without_errors(outcomes: Float, informed: Float) -> Float:
    """Return `outcomes`, 1, 0 or NaN, without the errors of judges of the informedness `informed`, both of one shape:
    on average what is true, and for one outcome above 1 or below 0."""
    within: Float = np.clip(informed, LEAST_INFORMED, 1.0)
    found: Float = ((outcomes - 0.5) / within + 0.5).astype(np.float32)
    return found


def chances(
    probability: float, is_probe: bool, judged: Sequence[int], either_way: Sequence[int], tiers: int
) -> list[float]:
    """Return by tier, ascending, the chance to which the weight of its label is inverse; 1 for tiers without one.

    The request was drawn with `probability`, and the tiers `judged`. The answers of the tiers `either_way` are judged
    whether the request is drawn as a probe or as a sample, and then half of the weight comes from each.
    """
    of_draw = [2.0 if tier in either_way or not is_probe else 1.0 for tier in range(1, tiers + 1)]
    return [min(probability * part, 1.0) if tier in judged else 1.0 for tier, part in enumerate(of_draw, 1)]


def by_chance(chance: Float, told: Float, key: npt.NDArray[np.integer]) -> Float:
    """Return what scales the weights `told` [n, tiers - 1] of labels by the inverse of their `chance` [n, tiers - 1]:
    1 where that is unknown (NaN) and for equal chances within a `key` [n]; less in sum where they are unequal, since
    unequally weighted labels tell less (Kish 1965)."""
    found = np.ones_like(told)
    for number in np.unique(key):
        for tier in range(told.shape[1]):
            rows = np.flatnonzero((key == number) & (told[:, tier] > 0) & np.isfinite(chance[:, tier]))
            if len(rows):
                inverse = 1.0 / chance[rows, tier].astype(np.float64)
                weight = np.clip(inverse / inverse.mean(), 1 / MOST_BY_CHANCE, MOST_BY_CHANCE)
                found[rows, tier] = weight * weight.sum() / (weight**2).sum()
    return found
