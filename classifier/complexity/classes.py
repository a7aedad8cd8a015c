"""The four complexity classes of prompts."""

from enum import IntEnum


class Complexity(IntEnum):
    """The sources' classes (SPEC RT-01): the smallest kind of model whose answer is good enough."""

    SIMPLE = 1
    MEDIUM = 2
    COMPLEX = 3
    EXPERT = 4
