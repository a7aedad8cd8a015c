"""What families of tasks are made of: the wording of a question, a template of several, the last of which are held
out, in a frame of several; and written steps of small calculations, which an adapter learns to write first."""

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


def added(a: int, b: int) -> str:
    """The sum of two whole numbers, digit by digit from the right."""
    if a < 10 and b < 10:
        return f"{a} + {b} = {a + b}."
    lines, carry = [], 0
    for power in range(max(len(str(a)), len(str(b)))):
        x, y = a // 10**power % 10, b // 10**power % 10
        total = x + y + carry
        carried = f" + {carry}" if carry else ""
        carry = total // 10
        lines.append(f"{x} + {y}{carried} = {total}{f', {total % 10} carry 1' if carry else ''}.")
    return f"{a} + {b}: {' '.join(lines)} {a} + {b} = {a + b}."


def taken(a: int, b: int) -> str:
    """The difference of two whole numbers, a at least b, digit by digit from the right."""
    if a < 20 and b < 10:
        return f"{a} - {b} = {a - b}."
    lines, borrowed = [], 0
    for power in range(len(str(a))):
        x, y = a // 10**power % 10, b // 10**power % 10
        less = f" - {borrowed}" if borrowed else ""
        under = x < y + borrowed
        shown = f"1{x}" if under else str(x)
        lines.append(f"{shown} - {y}{less} = {int(shown) - y - borrowed}{', borrow 1' if under else ''}.")
        borrowed = int(under)
    return f"{a} - {b}: {' '.join(lines)} {a} - {b} = {a - b}."


def multiplied(a: int, b: int) -> str:
    """The product of a whole number and a digit or a power of ten, by the places of the first."""
    if a < 10 or b in (10, 100, 1000):
        return f"{a} x {b} = {a * b}."
    parts = [int(digit) * 10**power for power, digit in enumerate(reversed(str(a))) if digit != "0"]
    products = [f"{part} x {b} = {part * b}." for part in reversed(parts)]
    if len(parts) == 1:
        return " ".join(products)
    sums, total = [], parts[-1] * b
    for part in reversed(parts[:-1]):
        sums.append(f"{total} + {part * b} = {total + part * b}.")
        total += part * b
    return f"{' '.join(products)} {' '.join(sums)} {a} x {b} = {a * b}."


def compared(a: int, b: int) -> str:
    """Which of two different whole numbers is larger, by their lengths or their first digits that differ."""
    first, second = str(a), str(b)
    large = max(a, b)
    if len(first) != len(second):
        return f"{a} and {b}: {len(first)} and {len(second)} digits. {large} is larger."
    seen = []
    for x, y in zip(first, second, strict=True):
        seen.append(f"{x} {'=' if x == y else '>' if x > y else '<'} {y}")
        if x != y:
            break
    return f"{a} and {b}: {', '.join(seen)}. {large} is larger."
