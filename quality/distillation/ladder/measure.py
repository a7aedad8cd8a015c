"""How often each tier of a catalogue is right on the ladder's tasks: in held-out wordings, and of families that the
adapter never saw."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from quality.distillation.ladder.tasks import LadderTask, ladder_tasks
from quality.estimates.verified_sample import Share, wilson_interval
from quality.evaluation.everyday_outcomes import Progress, asked_scores
from tiers.catalog.catalog import Catalog
from tiers.tier import Tier

MeasuredPart = Literal["held-out", "untrained"]
PARTS: tuple[MeasuredPart, ...] = ("held-out", "untrained")
LEVEL_PAIRS = ((1, 2), (3, 4), (5, 6))


class LadderScores(msgspec.Struct, frozen=True, kw_only=True):
    """One tier's results on the tasks of one part. `right[i]` is 1 if its answer to `ladder_tasks(seed, per_level,
    part)[i]` was right, else 0; `tokens[i]` is what that answer billed, thoughts included."""

    tier: int
    part: MeasuredPart
    right: list[int]
    tokens: list[int]

    @property
    def share(self) -> Share:
        """The right answers, with Wilson's 95% interval."""
        return wilson_interval(sum(self.right), len(self.right))

    def of(self, tasks: Sequence[LadderTask], *, family: str = "", levels: Sequence[int] = ()) -> Share:
        """The right answers to those `tasks`, all of this part, that are of `family` and `levels`; empty: of any."""
        found = [
            right
            for right, task in zip(self.right, tasks, strict=True)
            if family in ("", task.family) and (not levels or task.level in levels)
        ]
        return wilson_interval(sum(found), len(found))


async def measured_ladder(
    tiers: Sequence[Tier], catalog: Catalog, *, seed: int, per_level: int, concurrency: int, progress: Progress
) -> list[LadderScores]:
    """Ask `per_level` tasks of each family and level to each of the started `tiers`, greedily, `concurrency` at a time.

    Raises `TierMeasurementError` if a tier cannot answer, and ValueError if there are fewer different tasks.
    """
    found: list[LadderScores] = []
    for part in PARTS:
        asked = [(task.prompt, task.is_right) for task in ladder_tasks(seed, per_level, part)]
        for tier in tiers:
            right, tokens = await asked_scores(tier, catalog, asked, concurrency, progress)
            found.append(LadderScores(tier=tier.number, part=part, right=right, tokens=tokens))
    return found
