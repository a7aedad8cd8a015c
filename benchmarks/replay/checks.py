"""What a loop that works does in one deployment's life; each way to break the loop fails some of it."""

import msgspec

from benchmarks.replay.baselines import at_equal_cost, mixing
from benchmarks.replay.figures import Figure, gain
from benchmarks.replay.timeline import COLD, REPAIRED, RETRAINED, WORSE, Life, Look


class Check(msgspec.Struct, frozen=True):
    """One thing that must hold, and what was seen."""

    name: str
    passed: bool
    detail: str

    @property
    def line(self) -> str:
        """For people."""
        return f"{'ok  ' if self.passed else 'FAIL'}  {self.name}: {self.detail}"


def quality_of(look: Look) -> float:
    """Share of the held-out prompts whose answer would be no worse than the strongest tier's."""
    return float((look.served * look.ladder.no_worse).sum(axis=1).mean())


def cost_of(look: Look) -> float:
    """Cost of the held-out prompts, as a share of the strongest tier's."""
    return float((look.served * look.ladder.costs).sum() / look.ladder.costs[:, -1].sum())


def checks(life: Life, labels: int) -> list[Check]:
    """In the order in which things happen; `labels` is how many were wanted before the first retraining."""
    cold, after = life.first(COLD), life.last(RETRAINED)
    if cold is None or after is None:
        return [Check("the run got as far as its first retraining", False, "it did not")]
    refused = [run.reason for run in life.retrainings if not run.accepted]
    refusals = f"{len(refused)} retrainings, the last: {refused[-1]}" if refused else "there was no retraining"
    promoted = after.version != cold.version
    stated = [
        Check("answers were verified", after.spent.labels >= labels, f"{after.spent.labels} labels, {labels} wanted"),
        Check("a retrained version was promoted", promoted, f"{after.version} serves" if promoted else refusals),
        *_better(cold, after),
    ]
    return stated if life.worse_at is None else [*stated, *_repaired(life, after)]


def _better(cold: Look, after: Look) -> list[Check]:
    """On prompts that were never asked. Both are compared at equal cost: sending more to the dearest tier gives
    better answers, and takes no learning."""
    ladder, ours = after.ladder, after.served
    first_day = gain(ladder, ours, at_equal_cost(ladder, cold.served, ours))
    lottery = gain(ladder, ours, mixing(ladder, ours))
    return [
        _certainly("prompts are routed better than on the first day, at equal cost", first_day),
        Check("prompts are not routed worse than by a lottery, at equal cost", lottery.high > 0, lottery.gained),
    ]


def _certainly(name: str, gained: Figure) -> Check:
    return Check(name, gained.low > 0, gained.gained)


def _repaired(life: Life, before: Look) -> list[Check]:
    worse, last = life.first(WORSE), life.last(REPAIRED)
    if worse is None or last is None:
        return [Check("the run got as far as a tier that is worse", False, "it did not")]
    lost, left = quality_of(before) - quality_of(worse), quality_of(before) - quality_of(last)
    noticed = f"{life.noticed.stream}: {life.noticed.reason}" if life.noticed else "no alarm names it"
    course = f"quality {quality_of(before):.1%}, then {quality_of(worse):.1%}, in the end {quality_of(last):.1%}"
    return [
        Check("the tier that got worse was noticed", life.noticed is not None, noticed),
        Check("most of the quality that it cost came back", left <= lost / 2, course),
    ]
