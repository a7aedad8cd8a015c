"""The four complexity classes of prompts, and the prior of tiers without measured outcomes: P(good enough) from the
prompt's class and the kind of model.

For SIMPLE and MEDIUM prompts the table follows the definition of the classes ("a 3B model suffices"). For COMPLEX and
EXPERT ones it follows recorded ladders of similar sizes: Phi-3-mini, Llama-3.1-8B and 70B against GPT-4o on MMLU-Pro,
and four models of a chat arena, where about half and a third of the small models' answers are no worse. Adequacy is not
the same label as "no worse than the strongest tier's"; verified outcomes replace the prior.
"""

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
import numpy.typing as npt


class Complexity(IntEnum):
    """The classes of SPEC RT-01: the smallest kind of model whose answer is good enough."""

    SIMPLE = 1
    MEDIUM = 2
    COMPLEX = 3
    EXPERT = 4


def likeliest(probabilities: Sequence[float]) -> Complexity:
    """Return the class with the greatest of the four `probabilities`; on ties the easiest."""
    return Complexity(1 + max(range(len(probabilities)), key=probabilities.__getitem__))


Float = npt.NDArray[np.float32]

# P(adequate | class, kind of model); the columns are 3B, 8B, 70B, and 70B with chain of thought.
_ADEQUATE: dict[Complexity, tuple[float, float, float, float]] = {
    Complexity.SIMPLE: (0.97, 0.98, 0.99, 0.99),
    Complexity.MEDIUM: (0.55, 0.96, 0.98, 0.99),
    Complexity.COMPLEX: (0.15, 0.40, 0.95, 0.98),
    Complexity.EXPERT: (0.05, 0.15, 0.50, 0.95),
}


def adequacy(classes: Sequence[float], like: Sequence[Complexity]) -> list[float]:
    """Return P(tier k's answer is good enough) for tiers `like` models of these classes; the strongest tier's is 1.

    `classes`: P of the four classes, ascending.
    """
    p_adequate = [
        sum(p * _ADEQUATE[complexity][kind - 1] for p, complexity in zip(classes, Complexity, strict=True))
        for kind in like
    ]
    return [*p_adequate[:-1], 1.0]


def adequacies(like: Sequence[Complexity]) -> Float:
    """Return the table's rows for tiers `like` models of these classes, float32 [4, tiers]; the strongest's are 1."""
    table = np.array([[_ADEQUATE[c][kind - 1] for kind in like] for c in Complexity], np.float32)
    table[:, -1] = 1.0
    return table


def like_of(tiers: int) -> tuple[Complexity, ...]:
    """Return the default kinds of `tiers` tiers: spread evenly from the weakest to the strongest."""
    if tiers == 1:
        return (Complexity.EXPERT,)
    return tuple(Complexity(1 + round(3 * index / (tiers - 1))) for index in range(tiers))
