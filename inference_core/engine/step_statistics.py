"""Step durations and batch sizes of a model, counted since start."""

from bisect import bisect_left
from dataclasses import dataclass

STEP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0)


@dataclass(slots=True, frozen=True)
class StepMeasurement:
    """What one step computed and took.

    `tokens`: without drafts, whose cost is the decodes'. `depth`: see `StepPlan.prompt_depth`. `seconds`: how long the
    step kept the device; `swap_seconds` of these went to copies from and to host memory.
    """

    sequences: int
    tokens: int
    depth: float
    seconds: float
    swap_seconds: float


class StepStatistics:
    """`seconds_counts[i]` counts steps of at most `STEP_SECONDS[i]`, the last one all beyond; `batch_sizes` by size."""

    def __init__(self) -> None:
        self.seconds_counts = [0] * (len(STEP_SECONDS) + 1)
        self.seconds_sum = 0.0
        self.batch_sizes: dict[int, int] = {}

    def record(self, sequences: int, seconds: float) -> None:
        """Record a step of `sequences` that took `seconds`."""
        self.seconds_counts[bisect_left(STEP_SECONDS, seconds)] += 1
        self.seconds_sum += seconds
        self.batch_sizes[sequences] = self.batch_sizes.get(sequences, 0) + 1
