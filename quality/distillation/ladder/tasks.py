"""Tasks with checkable answers, of graded difficulty, in many wordings, with a short and a longer thought for each.

Some wordings are held out: training never sees them. Three families are never trained.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

import msgspec

from quality.distillation.ladder import number_families, text_families, word_families
from quality.distillation.ladder.wordings import Made, Wordings
from quality.evaluation.everyday_tasks import Rule, is_answer

LEVELS = (1, 2, 3, 4, 5, 6)
Part = Literal["trained", "held-out", "untrained"]
Make = Callable[[Wordings, int], Made]

TRAINED: Mapping[str, Make] = MappingProxyType(
    {
        "sums": number_families.sums,
        "compare": number_families.compare,
        "sort": number_families.sort,
        "units": number_families.units,
        "yes-no": number_families.yes_no,
        "letters": word_families.letters,
        "reverse": word_families.reverse,
        "dates": word_families.dates,
        "logic": text_families.logic,
        "table": text_families.table,
        "extract": text_families.extract,
    }
)
UNTRAINED: Mapping[str, Make] = MappingProxyType(
    {
        "sequence": number_families.sequence,
        "roman": number_families.roman,
        "initials": word_families.initials,
    }
)


class LadderTask(msgspec.Struct, frozen=True, kw_only=True):
    """One question. Any of `answers` is right by `rule`; `others` are wrong answers that the question itself names.

    `brief` and `detailed`: a short and a longer thought that lead to the first answer. `level` rises from 1 to 6.
    """

    prompt: str
    answers: tuple[str, ...]
    others: tuple[str, ...]
    rule: Rule
    brief: str
    detailed: str
    family: str
    level: int

    def is_right(self, text: str) -> bool:
        """Whether `text` answers the question; see `is_answer`."""
        return is_answer(self.rule, self.answers, self.others, text)


def ladder_task(rng: random.Random, family: str, level: int, part: Part) -> LadderTask:
    """Draw a task of `family` and `level`: in the wordings of training, or in held-out ones. Deterministic in `rng`."""
    make = UNTRAINED[family] if part == "untrained" else TRAINED[family]
    words = Wordings(rng, held_out=part != "trained")
    made = make(words, level)
    return LadderTask(
        prompt=words.framed(made.question),
        answers=made.answers,
        others=made.others,
        rule=made.rule,
        brief=made.brief,
        detailed=made.detailed,
        family=family,
        level=level,
    )


def ladder_tasks(seed: int, per_level: int, part: Part) -> list[LadderTask]:
    """Return `per_level` different tasks of each family and level of `part`, shuffled; deterministic in the arguments.

    Raises `ValueError` if there are fewer.
    """
    rng = random.Random(f"{seed}/{part}")
    made: dict[str, LadderTask] = {}
    for family in families(part):
        for level in LEVELS:
            wanted = len(made) + per_level
            for _ in range(200 * per_level):
                if len(made) == wanted:
                    break
                task = ladder_task(rng, family, level, part)
                made.setdefault(task.prompt, task)
            if len(made) < wanted:
                raise ValueError(f"there are fewer than {per_level} {family} tasks of level {level}; ask for fewer")
    tasks = list(made.values())
    rng.shuffle(tasks)
    return tasks


def families(part: Part) -> Sequence[str]:
    """The names of the families of `part`."""
    return list(UNTRAINED if part == "untrained" else TRAINED)
