"""The graded task set: generated prompts of rising difficulty, each with one correct answer.

What tiers make of it: docs/results/tier-accuracy.md.
"""

import random
from collections.abc import Callable
from typing import Literal

import msgspec

from tiers.final_answer.quantities import final_number
from tiers.final_answer.text import normalised

Kind = Literal["copy", "spell", "compare", "arithmetic"]
Make = Callable[[random.Random, int], tuple[str, str]]

LEVELS = (1, 2, 3, 4, 5)

_VOCABULARY = """
sun sea cup hat map red dog key tea oak river apple stone chair green music table bread cloud horse garden window yellow
silver winter pencil bridge forest basket rocket captain diamond blanket lantern village morning mountain elephant
umbrella sandwich treasure hospital calendar notebook adventure chocolate telescope butterfly newspaper waterfall
photograph technology basketball helicopter restaurant strawberry television microscope
"""
_WORDS = _VOCABULARY.split()


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt with its only correct answer."""

    prompt: str
    answer: str
    kind: Kind
    level: int
    """From 1 to 5, rising with what must be remembered or computed."""


def tasks(seed: int, per_level: int) -> list[Task]:
    """Return `per_level` tasks of each kind and level without duplicates; deterministic in the arguments.

    Raises `ValueError` if there are fewer different tasks.
    """
    rng = random.Random(seed)
    made: list[Task] = []
    for kind, make in _MAKERS.items():
        for level in LEVELS:
            seen = {task.prompt for task in made}
            made += _distinct(kind, level, per_level, make, rng, seen)
    rng.shuffle(made)
    return made


def check(task: Task, answer_text: str) -> bool:
    """Return whether `answer_text` is correct: by number for numeric tasks, by words or letters for the others."""
    if task.kind in ("compare", "arithmetic"):
        number = final_number(answer_text)
        return number is not None and number == final_number(task.answer)
    if task.kind == "spell":
        return _letters(answer_text) == _letters(task.answer)
    return normalised(answer_text) == normalised(task.answer)


def _letters(text: str) -> str:
    return "-".join(part.strip() for part in normalised(text).split("-"))


def _distinct(kind: Kind, level: int, count: int, make: Make, rng: random.Random, seen: set[str]) -> list[Task]:
    distinct: list[Task] = []
    for _ in range(100 * count):
        if len(distinct) == count:
            break
        prompt, answer = make(rng, level)
        if prompt not in seen:
            seen.add(prompt)
            distinct.append(Task(prompt=prompt, answer=answer, kind=kind, level=level))
    if len(distinct) < count:
        raise ValueError(f"only {len(distinct)} different {kind} tasks of level {level} were found; ask for fewer")
    return distinct


def _copy(rng: random.Random, level: int) -> tuple[str, str]:
    text = " ".join(rng.sample(_WORDS, (1, 2, 4, 7, 10)[level - 1]))
    return f'Say exactly the following and nothing else: "{text}"', text


def _spell(rng: random.Random, level: int) -> tuple[str, str]:
    # Invented words: their spelling cannot be memorised, and there are enough of them.
    word = "".join(rng.choice("aeiou" if index % 2 else "bcdfghklmnprstvz") for index in range(1 + 2 * level))
    prompt = f'Spell "{word}" with a hyphen between all letters, like c-a-t. Write only the letters.'
    return prompt, "-".join(word)


def _compare(rng: random.Random, level: int) -> tuple[str, str]:
    low, high = (1, 10) if level == 1 else (10 ** (level - 1), 10**level)
    if level <= 3:
        a, b = rng.sample(range(low, high), 2)
    else:
        # Numbers that share leading digits are harder to compare.
        base = rng.randrange(low, high - 100)
        a, b = rng.sample(range(base, base + 50), 2)
    example = rng.sample(range(low, high), 2)
    wanted, pick = rng.choice((("larger", max), ("smaller", min)))
    shown = f"{example[0]} or {example[1]}: {pick(example)}"
    return f"Which number is {wanted}? Answer with the number only.\n{shown}\n{a} or {b}:", str(pick(a, b))


def _arithmetic(rng: random.Random, level: int) -> tuple[str, str]:
    if level == 1:
        a, b = rng.randrange(1, 7), rng.randrange(1, 7)
    elif level == 2:
        a, b = rng.randrange(2, 10), rng.randrange(2, 10)
    elif level == 3:
        a, b = rng.randrange(10, 100), rng.randrange(1, 10)
    else:
        a, b = rng.randrange(11, 100), rng.randrange(11, 100)
    if level <= 4:
        return f"What is {a} + {b}? Answer with the number only.", str(a + b)
    c = rng.randrange(3, 10)
    return f"What is {a} * {c} + {b}? Answer with the number only.", str(a * c + b)


_MAKERS: dict[Kind, Make] = {"copy": _copy, "spell": _spell, "compare": _compare, "arithmetic": _arithmetic}
