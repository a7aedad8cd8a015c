"""Generated pairs of answers with known outcomes, on which every judge can be calibrated."""

import json
import random
from collections.abc import Callable
from typing import Any

from quality.evaluation.task_set import Task, tasks
from quality.judges.calibration import GradedPair

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
_PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
_OPERATIONS = (("sum", "+"), ("difference", "-"), ("product", "*"))


def graded_pairs(seed: int = 0, per_level: int = 4) -> list[GradedPair]:
    """Return right and wrong answers in many phrasings against a right reference, in equal numbers: exact tasks, JSON
    with and without a schema, and Python functions."""
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
    makers = (_json_pairs, _schema_pairs, _code_pairs)
    return pairs + [pair for make in makers for _ in range(10 * per_level) for pair in make(rng)]


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


def _schema_pairs(rng: random.Random) -> list[GradedPair]:
    name, age = rng.choice(_NAMES), rng.randrange(20, 90)
    right: dict[str, Any] = {"name": name, "age": age}
    bad = rng.choice(
        ({"name": name}, right | {"age": str(age)}, right | {"born": 1900}, right | {"age": -age}, [right])
    )
    shared: dict[str, Any] = {
        "prompt": f"{name} is {age} years old.",
        "reference_answer": json.dumps(right),
        "response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": _PERSON}},
    }
    return [
        GradedPair(answer=json.dumps(dict(reversed(right.items())), indent=1), no_worse=True, **shared),
        GradedPair(answer=json.dumps(bad), no_worse=False, **shared),
    ]


def _code_pairs(rng: random.Random) -> list[GradedPair]:
    what, sign = rng.choice(_OPERATIONS)
    first, second = rng.sample("abcxyz", 2)
    prompt = f"Write a Python function {what}_of({first}, {second}) that returns the {what} of its arguments."
    right = f"def {what}_of({first}, {second}):\n    return {first} {sign} {second}"
    good = rng.choice((right, f"```python\n{right}\n```", f"Here it is:\n```\n{right}  # done\n```\nHope it helps!"))
    bad = rng.choice(
        (right.replace(":", ""), right.replace("    ", ""), right[:-1], f"```python\n{right[4:]}\n```", what)
    )
    return [
        GradedPair(prompt=prompt, answer=good, reference_answer=f"```python\n{right}\n```", no_worse=True),
        GradedPair(prompt=prompt, answer=bad, reference_answer=right, no_worse=False),
    ]
