"""The times of a model's steps: counted since start with their batch sizes, modelled, and shared among models.

The model of step time is learned while serving: a base, a cost per sequence, per further token and per attended token.
Which model of a core computes next is deficit round robin on measured step time, deadlines first.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

STEP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0)


@dataclass(slots=True, frozen=True)
class StepMeasurement:
    """What one step computed and took.

    `tokens`: without drafts, whose cost is the decodes'. `depth`: see `StepPlan.prompt_depth`. `seconds`: how long the
    step kept the device; `swap_seconds` of these went to copies from and to host memory. `decode_steps`: how many steps
    of `tokens` each followed each other in this time.
    """

    sequences: int
    tokens: int
    depth: float
    seconds: float
    swap_seconds: float
    decode_steps: int = 1


class StepStatistics:
    """`seconds_counts[i]` counts steps of at most `STEP_SECONDS[i]`, the last one all beyond; `batch_sizes` by size."""

    def __init__(self) -> None:
        self.seconds_counts = [0] * (len(STEP_SECONDS) + 1)
        self.seconds_sum = 0.0
        self.batch_sizes: dict[int, int] = {}

    def record(self, sequences: int, seconds: float, steps: int = 1) -> None:
        """Record so many `steps` of `sequences` that took `seconds` each."""
        self.seconds_counts[bisect_left(STEP_SECONDS, seconds)] += steps
        self.seconds_sum += seconds * steps
        self.batch_sizes[sequences] = self.batch_sizes.get(sequences, 0) + steps


@dataclass(frozen=True, slots=True)
class StepCost:
    """`seconds = base + per_sequence · sequences + (per_token + per_pair · depth) · further tokens`.

    A sequence's first token in a step is counted with the sequence, so a decode costs one sequence.
    `depth`: the mean number of tokens that a further one attends to.
    """

    base: float = 0.0
    per_sequence: float = 0.0
    per_token: float = 0.0
    per_pair: float = 0.0

    def predict(self, sequences: float, tokens: float, depth: float = 0.0) -> float:
        """Seconds that a step of `tokens` (decodes included) in `sequences` takes on average."""
        return self.base + self.per_sequence * sequences + self.further(depth) * (tokens - sequences)

    def further(self, depth: float) -> float:
        """Seconds of one more prompt token at `depth`."""
        return self.per_token + self.per_pair * depth


class StepTimeModel:
    """Learns a `StepCost`, no coefficient negative.

    Least squares with variances taken as proportional to the prediction and with exponential forgetting, solved by a
    few sweeps of coordinate descent from the last solution (Franc, Hlaváč and Navara, "Sequential coordinate-wise
    algorithm for the non-negative least squares problem", 2005). Unlike recursive least squares with forgetting, it
    neither turns negative nor diverges in a direction that the load does not exercise: that coefficient stays.
    `tail` is the 95th percentile of measured over predicted time, tracked by stochastic approximation.
    """

    WARM_UP: Final = 16  # steps before predictions count
    _MEMORY: Final = 0.99  # weight of the step before against this one
    _SWEEPS: Final = 6
    _SCALES: Final = (1.0, 8.0, 64.0, 64_000.0)  # a usual step, so that inertia means the same for each coefficient
    _OUTLIER: Final = 3.0  # one step counts as at most so many times what was predicted
    _MAX_TAIL: Final = 3.0

    def __init__(self) -> None:
        self.cost = StepCost()
        self.tail = 1.0
        self.steps = 0
        self._observed: list[tuple[int, int, float, float]] = []
        self._mean_seconds = 0.0
        # The normal equations: the upper triangle of the 4 x 4 matrix by rows, then the right-hand side.
        self._sums = (0.0,) * 14

    @property
    def is_warm(self) -> bool:
        """Whether predictions count yet."""
        return self.steps >= self.WARM_UP

    def observe(self, sequences: int, tokens: int, depth: float, seconds: float) -> None:
        """Note for `learn` that a step of `tokens` (decodes included) in `sequences`, its further tokens at `depth`,
        took
        `seconds`."""
        self._observed.append((sequences, tokens - sequences, depth, seconds))

    def learn(self) -> None:
        """Update cost and tail from the observations since the last call."""
        if self._observed:
            self._take_in()
            self._solve()

    def _take_in(self) -> None:
        cost, tail = self.cost, self.tail
        a00, a01, a02, a03, a11, a12, a13, a22, a23, a33, b0, b1, b2, b3 = self._sums
        keep, mean, steps, outlier = self._MEMORY, self._mean_seconds, self.steps, self._OUTLIER
        for sequences, more, depth, seconds in self._observed:
            predicted = cost.predict(sequences, sequences + more, depth)
            if steps >= self.WARM_UP and predicted > 0:
                tail *= 1.0475 if seconds > predicted * tail else 0.9975
                tail = min(max(tail, 1.0), self._MAX_TAIL)
                # Clip outliers such as pauses; lasting slowness is learned over several steps.
                seconds = min(seconds, outlier * predicted)
            else:
                predicted = max(seconds, 1e-7)
            steps += 1
            mean += max(1 - keep, 1 / steps) * (seconds - mean)
            x0 = predicted**-0.5
            x1, x2, x3, y = sequences * x0, more * x0, more * depth * x0, seconds * x0
            a00 = a00 * keep + x0 * x0
            a01 = a01 * keep + x0 * x1
            a02 = a02 * keep + x0 * x2
            a03 = a03 * keep + x0 * x3
            a11 = a11 * keep + x1 * x1
            a12 = a12 * keep + x1 * x2
            a13 = a13 * keep + x1 * x3
            a22 = a22 * keep + x2 * x2
            a23 = a23 * keep + x2 * x3
            a33 = a33 * keep + x3 * x3
            b0 = b0 * keep + x0 * y
            b1 = b1 * keep + x1 * y
            b2 = b2 * keep + x2 * y
            b3 = b3 * keep + x3 * y
        self._observed.clear()
        self._sums = (a00, a01, a02, a03, a11, a12, a13, a22, a23, a33, b0, b1, b2, b3)
        self._mean_seconds, self.steps, self.tail = mean, steps, tail

    def _solve(self) -> None:
        a00, a01, a02, a03, a11, a12, a13, a22, a23, a33, b0, b1, b2, b3 = self._sums
        # Regularise each coefficient towards its last value with the weight of one usual step.
        usual = max(self._mean_seconds, 1e-7)
        w0, w1, w2, w3 = (scale**2 / usual for scale in self._SCALES)
        cost = self.cost
        x0, x1, x2, x3 = cost.base, cost.per_sequence, cost.per_token, cost.per_pair
        b0, b1, b2, b3 = b0 + w0 * x0, b1 + w1 * x1, b2 + w2 * x2, b3 + w3 * x3
        a00, a11, a22, a33 = a00 + w0, a11 + w1, a22 + w2, a33 + w3
        for _ in range(self._SWEEPS):
            x0 = max(0.0, (b0 - a01 * x1 - a02 * x2 - a03 * x3) / a00)
            x1 = max(0.0, (b1 - a01 * x0 - a12 * x2 - a13 * x3) / a11)
            x2 = max(0.0, (b2 - a02 * x0 - a12 * x1 - a23 * x3) / a22)
            x3 = max(0.0, (b3 - a03 * x0 - a13 * x1 - a23 * x2) / a33)
        self.cost = StepCost(x0, x1, x2, x3)


class ModelRoundRobin:
    """Shares a core's time between models with work (Shreedhar and Varghese, "Efficient fair queueing using deficit
    round robin", 1995, with the cost known only afterwards).

    Every model has a credit in seconds. A step is charged to its model; when no model with work is in credit,
    each gets the same number of quanta. So over any period in which two models both have work, their times
    differ by at most a quantum and their longest steps. Among models in credit the earliest deadline
    of a first token goes first, then the one served longest ago: deadlines decide when, never how much.
    """

    # A minimum, so that steps of no measurable cost take turns as well.
    MIN_CHARGE_SECONDS = 1e-4

    def __init__(self, models: Sequence[str], quantum_seconds: float = 0.02) -> None:
        self._quantum = quantum_seconds
        self._credit = dict.fromkeys(models, 0.0)
        self._last_turn = {model: i - len(models) for i, model in enumerate(models)}
        self._turns = 0

    def order(self, deadlines: Mapping[str, float]) -> list[str]:
        """The models to try, best first. `deadlines`: for each model with work, when a first token is due (or inf)."""
        for model in self._credit.keys() - deadlines.keys():
            # An idle model saves nothing up, but still owes what it overdrew.
            self._credit[model] = min(self._credit[model], 0.0)
        if not deadlines:
            return []
        best = max(self._credit[model] for model in deadlines)
        if best <= 0:
            quanta = int(-best / self._quantum) + 1
            for model in deadlines:
                self._credit[model] += quanta * self._quantum
        return sorted(deadlines, key=lambda m: (self._credit[m] <= 0, deadlines[m], self._last_turn[m]))

    def charge(self, model: str, seconds: float) -> None:
        """`model` took a step of `seconds`."""
        self._credit[model] -= max(seconds, self.MIN_CHARGE_SECONDS)
        self._turns += 1
        self._last_turn[model] = self._turns
