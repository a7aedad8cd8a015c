"""Everyday questions with a rule that checks the answer, generated so that results can be stored without texts."""

import random
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Literal

import msgspec

from quality.evaluation.everyday_tables import FACTS, LEVELS, TRUTHS, WORDS
from tiers.final_answer.quantities import final_number
from tiers.final_answer.short_answers import yes_or_no
from tiers.final_answer.text import normalised

EverydayKind = Literal["fact", "sum", "extract", "translate", "yes-no", "code", "list", "reason"]
Rule = Literal["contains", "number", "yes-no", "exact"]
Texts = tuple[str, ...]
# The question, its right answers and, if it offers any, the wrong ones.
Made = tuple[str, Texts, Texts]
Make = Callable[[random.Random, int], Made]


class EverydayTask(msgspec.Struct, frozen=True, kw_only=True):
    """One question. Any of `answers` is right."""

    prompt: str
    answers: Texts
    others: Texts
    """Wrong answers that the question itself names."""
    kind: EverydayKind
    level: int
    """From 1 (trivial) to 5 (hard)."""

    @property
    def rule(self) -> Rule:
        """How an answer is checked; see `is_right`."""
        return _RULES[self.kind]


def everyday_tasks(seed: int, per_level: int) -> list[EverydayTask]:
    """Return `per_level` questions of each kind and level without duplicates; deterministic in the arguments.

    Raises `ValueError` if there are fewer different questions.
    """
    rng = random.Random(seed)
    made: list[EverydayTask] = []
    for kind, make in _MAKERS.items():
        for level in LEVELS:
            tasks: dict[str, EverydayTask] = {}
            for _ in range(200 * per_level):
                if len(tasks) == per_level:
                    break
                prompt, answers, others = make(rng, level)
                task = EverydayTask(prompt=prompt, answers=answers, others=others, kind=kind, level=level)
                tasks.setdefault(prompt, task)
            if len(tasks) < per_level:
                raise ValueError(f"only {len(tasks)} different {kind} questions of level {level} exist; ask for fewer")
            made += tasks.values()
    rng.shuffle(made)
    return made


def is_right(task: EverydayTask, text: str) -> bool:
    """Return whether `text` answers `task`; see `is_answer`."""
    return is_answer(task.rule, task.answers, task.others, text)


def is_answer(rule: Rule, answers: Texts, others: Texts, text: str) -> bool:
    """Return whether `text` gives one of `answers`.

    `contains`: an answer occurs as whole words, case-insensitively, and before any wrong option of `others`; `number`:
    the final number is the first answer; `yes-no`: the first yes or no is it; `exact`: the text equals an answer apart
    from case, quotes, a full stop and spaces after commas.
    """
    if rule == "number":
        number = final_number(text)
        return number is not None and number == final_number(answers[0])
    if rule == "yes-no":
        return yes_or_no(text) == answers[0]
    if rule == "exact":
        return any(_items(text) == _items(answer) for answer in answers)
    said = normalised(text)
    places = [_place(answer, said) for answer in answers]
    return min(places) < min([_place(other, said) for other in others], default=len(said) + 1)


def _place(answer: str, said: str) -> int:
    """Return where `answer` first occurs in `said` as whole words; behind its end if it does not."""
    match = re.search(rf"(?<!\w){re.escape(normalised(answer))}(?!\w)", said)
    return len(said) + 1 if match is None else match.start()


def _items(text: str) -> str:
    return re.sub(r"\s*,\s*", ", ", normalised(text))


_NAMES = ["Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Henry", "Iris", "Jonas", "Kate", "Leo", "Maria"]
_THINGS = [
    "apples",
    "pears",
    "books",
    "pens",
    "cups",
    "coins",
    "stamps",
    "cards",
    "shells",
    "tickets",
    "eggs",
    "plates",
]
_CITIES = ["Lisbon", "Oslo", "Vienna", "Dublin", "Prague", "Athens", "Madrid", "Warsaw", "Bergen", "Geneva", "Turin"]
_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
_FRUIT = ["apple", "banana", "cherry", "grape", "lemon", "mango", "orange", "peach", "pear", "plum", "kiwi", "melon"]


def _fact(rng: random.Random, level: int) -> Made:
    question, answers = rng.choice(FACTS[level - 1])
    return question, answers, ()


def _translate(rng: random.Random, level: int) -> Made:
    asked, answers = rng.choice(WORDS[level - 1])
    return f"What is {asked}?", answers, ()


def _yes_no(rng: random.Random, level: int) -> Made:
    question, answers = rng.choice(TRUTHS[level - 1])
    return f"{question} Answer yes or no.", answers, ()


def _sum(rng: random.Random, level: int) -> Made:
    name, thing = rng.choice(_NAMES), rng.choice(_THINGS)
    if level == 1:
        a, b = rng.randrange(1, 6), rng.randrange(1, 5)
        return f"What is {a} plus {b}?", (str(a + b),), ()
    if level == 2:
        a, b = rng.randrange(3, 12), rng.randrange(2, 9)
        return f"{name} has {a} {thing} and gets {b} more. How many {thing} does {name} have now?", (str(a + b),), ()
    if level == 3:
        a, b = rng.randrange(20, 90), rng.randrange(3, 18)
        return f"{name} had {a} {thing} and gave away {b}. How many {thing} are left?", (str(a - b),), ()
    if level == 4:
        a, b, c = rng.randrange(3, 13), rng.randrange(4, 13), rng.randrange(2, 10)
        return (
            f"{name} buys {a} boxes of {b} {thing} each and loses {c} {thing}. How many {thing} are left?",
            (str(a * b - c),),
            (),
        )
    a, b, c = rng.randrange(4, 9), rng.randrange(12, 40), rng.choice((10, 20, 25, 50))
    return (
        f"A ticket costs {b * 4} euros. {name} buys {a} tickets and gets {c}% off the total. How many euros does "
        f"{name} pay?",
        (f"{a * b * 4 * (100 - c) / 100:g}",),
        (),
    )


def _extract(rng: random.Random, level: int) -> Made:
    people = rng.sample(_NAMES, (1, 2, 3, 4, 5)[level - 1])
    cities = rng.sample(_CITIES, len(people))
    days = rng.sample(_DAYS, len(people))
    told = " ".join(f"{p} travels to {c} on {d}." for p, c, d in zip(people, cities, days, strict=True))
    i = rng.randrange(len(people))
    asked = rng.randrange(3)
    if level == 5:
        order = sorted(range(len(people)), key=lambda k: _DAYS.index(days[k]))
        return (
            f"{told} Who travels first in the week, which begins on Monday?",
            (people[order[0]],),
            _without(people, order[0]),
        )
    if asked == 0:
        return f"{told} Where does {people[i]} travel?", (cities[i],), _without(cities, i)
    if asked == 1:
        return f"{told} On which day does {people[i]} travel?", (days[i],), _without(days, i)
    return f"{told} Who travels to {cities[i]}?", (people[i],), _without(people, i)


def _without(names: list[str], index: int) -> Texts:
    return (*names[:index], *names[index + 1 :])


def _code(rng: random.Random, level: int) -> Made:
    a, b, c = rng.randrange(2, 9), rng.randrange(2, 9), rng.randrange(2, 6)
    programs = {
        1: (f"print({a} + {b})", a + b),
        2: (f"x = {a}\ny = {b}\nprint(x * y)", a * b),
        3: (f"x = {a}\nif x > {b}:\n    x = x + {c}\nelse:\n    x = x - {c}\nprint(x)", a + c if a > b else a - c),
        4: (f"total = 0\nfor i in range({c}):\n    total += i * {a}\nprint(total)", sum(i * a for i in range(c))),
        5: (f"def f(n):\n    return n if n < 2 else f(n - 1) + f(n - 2) + {a}\nprint(f({c}))", _recursion(c, a)),
    }
    program, printed = programs[level]
    return f"What does this Python program print? Answer with the number only.\n\n{program}", (str(printed),), ()


def _recursion(n: int, more: int) -> int:
    return n if n < 2 else _recursion(n - 1, more) + _recursion(n - 2, more) + more


def _list(rng: random.Random, level: int) -> Made:
    only = "Answer with the list only, separated by commas."
    if level == 1:
        first = rng.randrange(1, 30)
        return f"Count from {first} to {first + 3}. {only}", (", ".join(str(first + i) for i in range(4)),), ()
    if level == 2:
        first = rng.randrange(5, 40)
        return f"Count down from {first + 4} to {first}. {only}", (", ".join(str(first + 4 - i) for i in range(5)),), ()
    if level == 3:
        words = rng.sample(_FRUIT, 3)
        return f"Sort these words alphabetically: {', '.join(words)}. {only}", (", ".join(sorted(words)),), ()
    if level == 4:
        numbers = rng.sample(range(10, 99), 5)
        return (
            f"Sort from small to large: {', '.join(map(str, numbers))}. {only}",
            (", ".join(map(str, sorted(numbers))),),
            (),
        )
    numbers = rng.sample(range(10, 99), 6)
    even = sorted(n for n in numbers if n % 2 == 0) or [0]
    return (
        f"Of the numbers {', '.join(map(str, numbers))} keep the even ones, and sort them from small to large; answer "
        f"0 if there are none. {only}",
        (", ".join(map(str, even)),),
        (),
    )


def _reason(rng: random.Random, level: int) -> Made:
    people = rng.sample(_NAMES, (2, 3, 3, 4, 5)[level - 1])
    ages = rng.sample(range(20, 60), len(people))
    if level == 1:
        a, b = people
        return f"{a} is taller than {b}. Who is taller?", (a,), (b,)
    if level == 2:
        told = ". ".join(f"{p} is {age} years old" for p, age in zip(people, ages, strict=True))
        return (
            f"{told}. Who is the oldest? Answer with the name only.",
            (people[ages.index(max(ages))],),
            _without(people, ages.index(max(ages))),
        )
    shuffled = [f"{a} is older than {b}." for a, b in pairwise(people)]
    rng.shuffle(shuffled)
    if level == 3:
        return (
            f"{' '.join(shuffled)} Who is the youngest? Answer with the name only.",
            (people[-1],),
            tuple(people[:-1]),
        )
    rank = rng.randrange(1, len(people) - 1)
    name = ("second", "third", "fourth")[rank - 1]
    return (
        f"{' '.join(shuffled)} Who is the {name} oldest? Answer with the name only.",
        (people[rank],),
        _without(people, rank),
    )


_MAKERS: dict[EverydayKind, Make] = {
    "fact": _fact,
    "sum": _sum,
    "extract": _extract,
    "translate": _translate,
    "yes-no": _yes_no,
    "code": _code,
    "list": _list,
    "reason": _reason,
}
_RULES: dict[EverydayKind, Rule] = {
    "fact": "contains",
    "sum": "number",
    "extract": "contains",
    "translate": "contains",
    "yes-no": "yes-no",
    "code": "number",
    "list": "exact",
    "reason": "contains",
}
