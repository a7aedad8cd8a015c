"""What a choice's steps cost besides computing: waiting, planning, KV blocks, preemptions. It travels whole, from the
scheduler to the caller's timings."""

from collections.abc import Iterable
from functools import reduce

import msgspec


class StepTimes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Seconds of waiting for the first step, and again after each preemption; up to the first token, seconds of
    planning the steps of the prompt and of its KV blocks (look-up, allocation, copies between device and host); and
    the number of preemptions."""

    queue_seconds: float = 0.0
    planning_seconds: float = 0.0
    kv_seconds: float = 0.0
    preemptions: int = 0

    def merged(self, other: "StepTimes") -> "StepTimes":
        """Return the times of two sequences that ran side by side: the longer seconds, and all preemptions."""
        return StepTimes(
            queue_seconds=max(self.queue_seconds, other.queue_seconds),
            planning_seconds=max(self.planning_seconds, other.planning_seconds),
            kv_seconds=max(self.kv_seconds, other.kv_seconds),
            preemptions=self.preemptions + other.preemptions,
        )

    @classmethod
    def of_all(cls, every: Iterable["StepTimes"]) -> "StepTimes":
        """Return the merged times of any number of sequences; without one `NO_TIMES`."""
        return reduce(cls.merged, every, NO_TIMES)


NO_TIMES = StepTimes()
