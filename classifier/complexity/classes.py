"""The four complexity classes of prompts."""

from collections.abc import Sequence
from enum import IntEnum


class Complexity(IntEnum):
    """The classes of SPEC RT-01: the smallest kind of model whose answer is good enough."""

    SIMPLE = 1
    MEDIUM = 2
    COMPLEX = 3
    EXPERT = 4


def likeliest(probabilities: Sequence[float]) -> Complexity:
    """Return the class with the greatest of the four `probabilities`; on ties the easiest."""
    return Complexity(1 + max(range(len(probabilities)), key=probabilities.__getitem__))
