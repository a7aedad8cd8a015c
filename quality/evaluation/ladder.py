"""Tasks with checkable answers, of graded difficulty, and how often each tier of a catalogue is right in them.

The adapter that ships with the catalogue `ladder` learned such tasks in other wordings; three families it never saw.
`benchmarks/ladder` of the repository makes the tasks, and trains.
"""

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Literal

import msgspec

from quality.estimates.verified_sample import Share, wilson_interval
from quality.evaluation.everyday_outcomes import Progress, asked_scores
from quality.evaluation.everyday_tasks import Rule, is_answer
from tiers.catalog.catalog import Catalog
from tiers.tier import Tier

MeasuredPart = Literal["held-out", "untrained"]
PARTS: tuple[MeasuredPart, ...] = ("held-out", "untrained")
LEVEL_PAIRS = ((1, 2), (3, 4), (5, 6))
FILE = "ladder_tasks.json"
MOST_PER_LEVEL = 10


class LadderTask(msgspec.Struct, frozen=True, array_like=True):
    """One question. Any of `answers` is right by `rule`."""

    family: str
    level: int
    """From 1 to 6."""
    prompt: str
    answers: tuple[str, ...]
    others: tuple[str, ...]
    """Wrong answers that the question itself names."""
    rule: Rule

    def is_right(self, text: str) -> bool:
        """Whether `text` answers the question; see `is_answer`."""
        return is_answer(self.rule, self.answers, self.others, text)


@cache
def _stored() -> dict[MeasuredPart, list[LadderTask]]:
    content = (files("quality.evaluation") / FILE).read_bytes()
    return msgspec.json.decode(content, type=dict[MeasuredPart, list[LadderTask]])


def measured_tasks(per_level: int, part: MeasuredPart) -> list[LadderTask]:
    """Return the first `per_level` tasks of each family and level of `part`, at most `MOST_PER_LEVEL`, in their
    order."""
    taken: dict[tuple[str, int], int] = {}
    tasks: list[LadderTask] = []
    for task in _stored()[part]:
        kind = (task.family, task.level)
        taken[kind] = taken.get(kind, 0) + 1
        if taken[kind] <= per_level:
            tasks.append(task)
    return tasks


class LadderScores(msgspec.Struct, frozen=True, kw_only=True):
    """One tier's results on the tasks of one part."""

    tier: int
    part: MeasuredPart
    right: list[int]
    """For each task of `measured_tasks(per_level, part)`, 1 if its answer was right, else 0."""
    tokens: list[int]
    """For each task, the tokens that the answer billed, thoughts included."""

    @property
    def share(self) -> Share:
        """The right answers, with Wilson's 95% interval."""
        return wilson_interval(sum(self.right), len(self.right))

    def of(self, tasks: Sequence[LadderTask], *, family: str = "", levels: Sequence[int] = ()) -> Share:
        """The right answers to those `tasks`, all of this part, that are of `family` and `levels`; empty: of any."""
        selected = [
            right
            for right, task in zip(self.right, tasks, strict=True)
            if family in ("", task.family) and (not levels or task.level in levels)
        ]
        return wilson_interval(sum(selected), len(selected))


async def measured_ladder(
    tiers: Sequence[Tier], catalog: Catalog, *, per_level: int, concurrency: int, progress: Progress
) -> list[LadderScores]:
    """Ask `per_level` tasks of each family and level to each of the started `tiers`, greedily, `concurrency` at a time.

    Raises `TierMeasurementError` if a tier cannot answer.
    """
    scores: list[LadderScores] = []
    for part in PARTS:
        asked = [(task.prompt, task.is_right) for task in measured_tasks(per_level, part)]
        for tier in tiers:
            right, tokens = await asked_scores(tier, catalog, asked, concurrency, progress)
            scores.append(LadderScores(tier=tier.number, part=part, right=right, tokens=tokens))
    return scores
