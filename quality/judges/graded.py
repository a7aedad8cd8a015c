"""Pairs of answers with known outcomes, generated from the task set, on which every judge can be measured."""

import json
import random
from collections.abc import Callable

from quality.judges.calibration import GradedPair
from quality.task_set import Task, tasks

_PHRASINGS: tuple[Callable[[str], str], ...] = (
    lambda answer: answer,
    lambda answer: f"{answer}.",
    lambda answer: f"**{answer}**",
    lambda answer: f'"{answer}"',
    lambda answer: f"  {answer}\n",
)
_NUMERIC_PHRASINGS: tuple[Callable[[str], str], ...] = (
    *_PHRASINGS,
    lambda answer: f"The answer is {answer}.",
    lambda answer: f"Let me work it out step by step.\n#### {answer}",
    lambda answer: f"It comes to {answer}.",
)
_NAMES = ("Ada", "Grace", "Alan", "Edsger", "Barbara", "Donald")


def graded_pairs(seed: int = 0, per_level: int = 4) -> list[GradedPair]:
    """Right and wrong answers in many phrasings against a right reference, half and half, exact tasks and JSON."""
    rng = random.Random(seed)
    pairs: list[GradedPair] = []
    for task in tasks(seed, per_level):
        phrasings = _NUMERIC_PHRASINGS if task.kind in ("compare", "arithmetic") else _PHRASINGS
        for answer, right in ((task.answer, True), (_wrong(task, rng), False)):
            pairs.append(
                GradedPair(
                    prompt=task.prompt,
                    answer=rng.choice(phrasings)(answer),
                    reference_answer=rng.choice(phrasings)(task.answer),
                    no_worse=right,
                )
            )
    return pairs + [pair for _ in range(10 * per_level) for pair in _json_pairs(rng)]


def _wrong(task: Task, rng: random.Random) -> str:
    if task.kind in ("compare", "arithmetic"):
        return str(int(task.answer) + rng.choice((-10, -2, -1, 1, 2, 10)))
    separator = "-" if task.kind == "spell" else " "
    parts = task.answer.split(separator)
    return separator.join(parts[:-1]) if rng.random() < 0.5 else separator.join([*parts, parts[0]])


def _json_pairs(rng: random.Random) -> list[GradedPair]:
    name, age = rng.choice(_NAMES), rng.randrange(20, 90)
    prompt = f'{name} is {age} years old. Return a JSON object with the keys "name" and "age".'
    right = {"name": name, "age": age}
    reference = json.dumps(right)
    good = rng.choice(
        (json.dumps(right, indent=2), f"```json\n{reference}\n```", json.dumps(dict(reversed(right.items()))))
    )
    bad = rng.choice((reference[:-1], f"Sure! {reference}", f"name: {name}, age: {age}", reference.replace('"', "'")))
    return [
        GradedPair(prompt=prompt, answer=good, reference_answer=reference, no_worse=True),
        GradedPair(prompt=prompt, answer=bad, reference_answer=reference, no_worse=False),
    ]
