"""The graded task set: generated prompts of rising difficulty with one right answer each (DESIGN §7)."""

import random
from collections.abc import Callable
from typing import Literal

import msgspec

from quality.judges.answers import final_number, normalised

Kind = Literal["copy", "spell", "compare", "arithmetic"]

LEVELS = (1, 2, 3, 4, 5)

_VOCABULARY = """
sun sea cup hat map red dog key tea oak river apple stone chair green music table bread cloud horse garden window yellow
silver winter pencil bridge forest basket rocket captain diamond blanket lantern village morning mountain elephant
umbrella sandwich treasure hospital calendar notebook adventure chocolate telescope butterfly newspaper waterfall
photograph technology basketball helicopter restaurant strawberry television microscope
"""
_WORDS = _VOCABULARY.split()


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt with its only right answer. `level` rises from 1 to 5 with what must be kept or computed."""

    prompt: str
    answer: str
    kind: Kind
    level: int


def tasks(seed: int, per_level: int) -> list[Task]:
    """`per_level` tasks of each kind and level, no prompt twice; the same for the same arguments.

    Raises `ValueError` if so many different ones do not exist.
    """
    rng = random.Random(seed)
    made: list[Task] = []
    for kind, make in _MAKERS.items():
        for level in LEVELS:
            made += _distinct(kind, level, per_level, make, rng)
    rng.shuffle(made)
    return made


def check(task: Task, answer_text: str) -> bool:
    """Whether `answer_text` is right: the number for numeric tasks, the words or letters for the others."""
    if task.kind in ("compare", "arithmetic"):
        given = final_number(answer_text)
        return given is not None and given == final_number(task.answer)
    if task.kind == "spell":
        return _letters(answer_text) == _letters(task.answer)
    return normalised(answer_text) == normalised(task.answer)


def _letters(text: str) -> str:
    return "-".join(part.strip() for part in normalised(text).split("-"))


def _distinct(
    kind: Kind, level: int, count: int, make: Callable[[random.Random, int], tuple[str, str]], rng: random.Random
) -> list[Task]:
    found: dict[str, Task] = {}
    for _ in range(100 * count):
        if len(found) == count:
            break
        prompt, answer = make(rng, level)
        found.setdefault(prompt, Task(prompt=prompt, answer=answer, kind=kind, level=level))
    if len(found) < count:
        raise ValueError(f"only {len(found)} different {kind} tasks of level {level} were found; ask for fewer")
    return list(found.values())


def _copy(rng: random.Random, level: int) -> tuple[str, str]:
    text = " ".join(rng.sample(_WORDS, 2 * level))
    return f"Repeat the following words exactly and write nothing else: {text}", text


def _spell(rng: random.Random, level: int) -> tuple[str, str]:
    # Made-up words: their spelling cannot be recited, and there are enough of them.
    word = "".join(rng.choice("aeiou" if place % 2 else "bcdfghklmnprstvz") for place in range(1 + 2 * level))
    prompt = f'Spell "{word}" with a hyphen between all letters, like c-a-t. Write only the letters.'
    return prompt, "-".join(word)


def _compare(rng: random.Random, level: int) -> tuple[str, str]:
    count = 1 + level
    high = 10 ** min(level + 1, 4)
    values = rng.sample(range(high // 10, high), count)
    # Easy levels are far apart; hard ones share their leading digits.
    if level >= 4:
        base = rng.randrange(high // 10, high - 100)
        values = rng.sample(range(base, base + 50), count)
    wanted, pick = rng.choice((("largest", max), ("smallest", min)))
    listed = ", ".join(map(str, values[:-1])) + f" and {values[-1]}"
    return f"Which number is the {wanted}: {listed}? Answer with the number only.", str(pick(values))


def _arithmetic(rng: random.Random, level: int) -> tuple[str, str]:
    if level <= 2:
        a, b = (rng.randrange(10 ** (level - 1), 10**level) for _ in range(2))
        return f"What is {a} + {b}? Answer with the number only.", str(a + b)
    if level == 3:
        a, b = sorted((rng.randrange(100, 1000), rng.randrange(10, 1000)), reverse=True)
        return f"What is {a} - {b}? Answer with the number only.", str(a - b)
    if level == 4:
        a, b = rng.randrange(11, 100), rng.randrange(3, 10)
        return f"What is {a} * {b}? Answer with the number only.", str(a * b)
    a, b, c = rng.randrange(11, 100), rng.randrange(11, 100), rng.randrange(100, 1000)
    return f"What is {a} * {b} + {c}? Answer with the number only.", str(a * b + c)


_MAKERS: dict[Kind, Callable[[random.Random, int], tuple[str, str]]] = {
    "copy": _copy,
    "spell": _spell,
    "compare": _compare,
    "arithmetic": _arithmetic,
}
