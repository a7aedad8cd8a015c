"""Guards: a candidate must not ruin one kind of prompts, however well it scores on all."""

from collections.abc import Sequence
from statistics import NormalDist

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.complexity.classes import Complexity
from classifier.training.metrics.estimates import MIN_ROWS

Float = npt.NDArray[np.floating]

# The allowed certain loss of a class, and the probability of finding any loss wrongly.
CLASS_TOLERANCE, CLASS_LEVEL = 0.01, 0.05


class ClassGain(msgspec.Struct, frozen=True, kw_only=True):
    """Mean gain on the rows of one complexity class; `high` is its upper bound, at a level for all classes together."""

    complexity: str
    rows: int
    gain: float
    high: float


def class_gains(classes: Float, difference: Float) -> list[ClassGain]:
    """Return gains by most likely class, the worst first, for rows with P of the `classes` [n, 4] and paired
    `difference` [n].

    Classes with fewer than `MIN_ROWS` rows are left out. The bounds hold for all classes together (Bonferroni).
    """
    if not len(classes):
        return []
    likeliest = classes.argmax(axis=1) + 1
    known = [one for one in Complexity if np.count_nonzero(likeliest == one) >= MIN_ROWS]
    if not known:
        return []
    z = NormalDist().inv_cdf(1.0 - CLASS_LEVEL / len(known))
    found = []
    for one in known:
        mine = difference[likeliest == one]
        mean, error = float(mine.mean()), float(mine.std(ddof=1)) / len(mine) ** 0.5
        high = round(mean + z * error, 6)
        found.append(ClassGain(complexity=one.name, rows=len(mine), gain=round(mean, 6), high=high))
    return sorted(found, key=lambda one: one.high)


def class_reasons(gains: Sequence[ClassGain]) -> list[str]:
    """Return a reason for each class that certainly loses."""
    return [
        f"loses on the {one.rows} {one.complexity} rows: {one.gain:+.4f}, at most {one.high:+.4f}"
        for one in gains
        if one.high < -CLASS_TOLERANCE
    ]
