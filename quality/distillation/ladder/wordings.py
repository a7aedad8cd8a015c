"""How a question is worded: a template of several, the last of which are held out, in a frame of several."""

import random
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from quality.evaluation.everyday_tasks import Rule

T = TypeVar("T")
# Text before and after a question; the last two pairs are held out.
_FRAMES = (
    ("", ""),
    ("", ""),
    ("Question: ", ""),
    ("", " Give only the answer."),
    ("Please help me. ", ""),
    ("", " Answer briefly."),
    ("Here is a task. ", ""),
    ("", " What is the answer?"),
    ("Hello! ", ""),
    ("", " Thank you."),
    ("I have a question. ", ""),
    ("", " Reply with the answer."),
    ("Answer this: ", ""),
    ("", " Say it in a word or two."),
    ("Next one. ", ""),
    ("", " Be exact."),
    ("Can you solve this? ", ""),
    ("", " Tell me the result."),
)
_HELD_OUT = 2


class Made(NamedTuple):
    """A question with its right answers, the wrong ones that it names, and thoughts that lead to the first answer."""

    question: str
    answers: tuple[str, ...]
    rule: Rule
    brief: str
    detailed: str
    others: tuple[str, ...] = ()


class Wordings:
    """Draws from `rng` what a question says; in wordings that training never sees if `held_out`."""

    def __init__(self, rng: random.Random, *, held_out: bool) -> None:
        self.rng, self._held_out = rng, held_out

    def say(self, templates: Sequence[str], **slots: object) -> str:
        """One of `templates` with its slots filled; the last of them is the held-out one."""
        chosen = templates[-1] if self._held_out else self.rng.choice(templates[:-1])
        return chosen.format(**slots)

    def framed(self, question: str) -> str:
        """`question` in a frame, such as "Question: " before it."""
        before, after = self.rng.choice(_FRAMES[-_HELD_OUT:] if self._held_out else _FRAMES[:-_HELD_OUT])
        return f"{before}{question}{after}"

    def pick(self, values: Sequence[T]) -> T:
        """One of `values`."""
        return self.rng.choice(values)

    def some(self, values: Sequence[T], count: int) -> list[T]:
        """`count` different ones of `values`, in random order."""
        return self.rng.sample(values, count)

    def number(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included."""
        return self.rng.randint(low, high)
