"""Tunes one model's token budget, prefill chunk and running sequences to its latency objectives (SPEC BS-10).

The model of step time is learned while serving: a base, a cost per sequence, per further token and per attended token.
Which batch sizes a dynamic batcher should prefer is read off the batches that came together.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from inference_core.protocol import Knobs, Tuning


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
        """Note for `learn` that a step of `tokens` in all, of `sequences`, took `seconds`, further ones at `depth`."""
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


@dataclass(frozen=True, slots=True)
class TuningRule:
    """Target seconds of a step: `seconds` with decodes, `idle_seconds` without, at the learned `cost`."""

    cost: StepCost
    seconds: float
    idle_seconds: float
    max_num_seqs: int

    def prompt_tokens(self, decodes: int, depth: float) -> float:
        """Prompt tokens, each attending to `depth` others, that fit a step with `decodes`."""
        further = self.cost.further(depth)
        if further <= 1e-9:
            return math.inf
        left = (self.seconds if decodes else self.idle_seconds) - self.cost.predict(decodes + 1, decodes + 1)
        return left / further + 1

    def limited(self, decodes: int, depth: float, most: float, most_idle: float) -> "TuningRule":
        """The same rule with at most so many prompt tokens at `depth`, with `decodes` and without."""
        cost = self.cost
        seconds = min(self.seconds, cost.predict(decodes + 1, decodes + most, depth))
        return replace(self, seconds=seconds, idle_seconds=min(self.idle_seconds, cost.predict(1, most_idle, depth)))


@dataclass(slots=True)
class _OfferedLoad:
    """Sums over `gaps` between tokens: their seconds, the requests without a first token, and the generated tokens."""

    gaps: int = 0
    seconds: float = 0.0
    queued: int = 0
    generated: int = 0

    def add(self, seconds: float, queued: int, generated: int) -> None:
        self.gaps += 1
        self.seconds += seconds
        self.queued += queued
        self.generated += generated

    @property
    def sequences(self) -> float:
        """The mean number of requests, with a first token and without."""
        return (self.queued + self.generated) / self.gaps

    def wait_seconds(self, answer_tokens: float) -> float:
        """How long a request waits for its first token: by Little's law, until as many answers have ended as wait."""
        return self.queued * answer_tokens / self.generated * self.seconds / self.gaps


class AutoTuner:
    """A controller without a clock: observes every step and answer, and returns the knobs for the next step.

    A learned model of step time (`StepTimeModel`) gives the prompt tokens that fit next to the running decodes so that
    95 of 100 steps keep the objective for the time between two tokens, and the prompt tokens that are enough
    (`_enough`), because longer steps would delay first tokens. A step takes the lesser of the two. Where more requests
    wait than either objective allows for, neither is given up for the other (`_overload`); gaps that miss theirs for
    long are no longer shortened by letting requests wait (`_stretched`). The number of
    running sequences is limited so that, at the measured mix of prompt and answer tokens, prompts are computed as fast
    as sequences end; decodes always keep a quarter of the objective. Other models on the core, and all else that the
    model of step time misses, lengthen the measured time between tokens; the margin then lowers the target step by
    step.

    The operator's knobs are upper limits; with `auto_tune` off they apply unchanged, while the model keeps learning.
    Decisions are at least `EVERY` steps apart, growth is at most `GROWTH` at once, and changes below `HYSTERESIS` (more
    room) or `SLACK` (less room) are not made.
    """

    EVERY = 8
    WINDOW = 64
    GROWTH = 1.5
    HYSTERESIS = 0.1
    SLACK = 0.05
    # A prompt always advances by at least so many tokens per step, if the limits allow.
    LEAST_ROOM = 4
    LEAST_MARGIN = 0.5
    # A margin below this has been lowered for long, in vain.
    OUT_OF_REACH = 0.75
    MOST_STRETCH = 8.0
    # Decodes may always take this share of a step beyond its base cost: a past of long prompts with short answers must
    # not keep later requests with long answers waiting for admission.
    LEAST_DECODES = 0.25

    def __init__(self, limits: Knobs) -> None:
        self.limits = limits
        self.knobs = limits
        self.model = StepTimeModel()
        self._rule: TuningRule | None = None
        self._decisions = 0
        self._reason = ""
        self._decided_at: float | None = None
        self._margin = self._stretch = 1.0
        self._steps_to_decision = self.EVERY
        self._decodes_left = 0
        self._last_end = 0.0
        self._gaps: list[float] = []
        self._gap_p95: float | None = None
        self._offered = _OfferedLoad()
        self._first_tokens: deque[float] = deque(maxlen=self.WINDOW)
        self._prompt_tokens = self._answer_tokens = 0.0
        self._answers = 0
        self._prompt_steps = 1.0
        self._depth = 0.0

    def set_limits(self, limits: Knobs) -> Knobs:
        """Apply the operator's knobs; tuning starts from them."""
        self.limits = self.knobs = limits
        self._rule, self._stretch = None, 1.0
        return self.knobs

    def after_step(
        self,
        sequences: int,
        tokens: int,
        decodes: int,
        seconds: float,
        now: float,
        *,
        backlog: int = 0,
        waiting: int = 0,
        sharing: int = 1,
        depth: float = 0.0,
    ) -> Knobs:
        """Record a step of `tokens` in `sequences` that took `seconds` and ended at `now`; `decodes` continue.

        `depth`: how many tokens the prompt tokens of the step attended to, on average.
        `backlog`: uncomputed prompt tokens of running sequences; `waiting`: sequences in the queue; `sharing`: models
        that have work on this core, this one included. Returns the knobs for the next step.
        """
        self._prompt_steps += 0.02 * ((tokens > sequences) - self._prompt_steps)
        self.model.observe(sequences, tokens, depth, seconds)
        if tokens > sequences:
            self._depth = depth
        if self._decodes_left:
            self._gaps.append(now - self._last_end)
            queued = waiting + math.ceil(backlog / max(self._prompt_tokens, 1.0))
            self._offered.add(now - self._last_end, queued, self._decodes_left)
        self._decodes_left, self._last_end = decodes, now
        self._steps_to_decision -= 1
        if self._steps_to_decision <= 0:
            self._steps_to_decision = self.EVERY
            self.model.learn()
            self._stretch = self._stretched(sharing)
            self._compare_with_objective()
            if self.limits.auto_tune and self.model.is_warm:
                self._decide(max(decodes, 1), sharing)
        if self._rule is not None:
            self._apply(self._rule, decodes, backlog, waiting)
        return self.knobs

    def after_answer(self, first_token_seconds: float, prompt_tokens: int, answer_tokens: int) -> None:
        """Record a complete answer: its time to first token, its computed prompt tokens, its answer tokens."""
        self._first_tokens.append(first_token_seconds)
        self._answers += 1
        weight = max(0.05, 1 / self._answers)
        self._prompt_tokens += weight * (prompt_tokens - self._prompt_tokens)
        self._answer_tokens += weight * (answer_tokens - self._answer_tokens)

    def tuning(self) -> Tuning:
        """Return the current limits, the reason for them, and the measurements behind them."""
        return Tuning(
            max_num_batched_tokens=self.knobs.max_num_batched_tokens,
            max_num_seqs=self.knobs.max_num_seqs,
            prefill_chunk=self.knobs.prefill_chunk,
            decisions=self._decisions,
            reason=self._reason,
            decided_at=self._decided_at,
            itl_p95_seconds=self._gap_p95,
            ttft_p95_seconds=_p95(list(self._first_tokens)),
            margin=self._margin,
            base_seconds=self.model.cost.base,
            sequence_seconds=self.model.cost.per_sequence,
            token_seconds=self.model.cost.per_token,
            pair_seconds=self.model.cost.per_pair,
            tail=self.model.tail,
        )

    def _compare_with_objective(self) -> None:
        """Every `WINDOW` gaps, adapt the margin to the measured time between tokens."""
        if len(self._gaps) < self.WINDOW:
            return
        self._gap_p95 = _p95(self._gaps)
        self._gaps.clear()
        if not self.limits.auto_tune or self._gap_p95 is None:
            self._margin = 1.0
        elif self._gap_p95 > self._between:
            self._margin = max(self.LEAST_MARGIN, self._margin * 0.95)
        elif self._gap_p95 < 0.9 * self._between:
            self._margin = min(1.0, self._margin * 1.05)

    def _stretched(self, sharing: int) -> float:
        """Return how many times their objective gaps may take from now on.

        A step with all who ask, though there are seats for them, may take longer than the objective. Where gaps miss it
        for long and first tokens miss theirs, waiting, the gaps take as long as such a step, or more, until first
        tokens keep theirs.
        """
        limits, cost, offered = self.limits, self.model.cost, self._offered
        if not limits.auto_tune:
            return 1.0
        if offered.gaps < 2 * self.EVERY or not self._answer_tokens:
            return self._stretch
        self._offered = _OfferedLoad()
        late = offered.wait_seconds(self._answer_tokens) / limits.ttft_objective_ms * 1e3
        each = cost.per_sequence + cost.further(self._depth) * self._prompt_tokens / self._answer_tokens
        together = (cost.base + each * offered.sequences) * self.model.tail * sharing / limits.itl_objective_ms * 1e3
        is_missed = self._stretch > 1.0 or self._margin < self.OUT_OF_REACH
        if is_missed and late > 1.0 and together > 1.0 and offered.sequences <= limits.max_num_seqs:
            self._margin = 1.0
            return min(max(self._stretch * 1.1, together), self.MOST_STRETCH)
        return max(1.0, self._stretch / 1.03) if late < 0.5 else self._stretch

    @property
    def _between(self) -> float:
        """The seconds between two tokens that are aimed at."""
        return self.limits.itl_objective_ms / 1e3 * self._stretch

    def _decide(self, decodes: int, sharing: int) -> None:
        target = self._between / sharing * self._margin
        wanted, old, depth = self._wanted(target / self.model.tail, sharing, decodes), self._rule, self._depth
        if old is not None:
            most, idle = (max(old.prompt_tokens(d, depth), self.LEAST_ROOM) * self.GROWTH for d in (decodes, 0))
            max_seqs = min(wanted.max_num_seqs, int(max(old.max_num_seqs, decodes) * self.GROWTH) + 1)
            wanted = replace(wanted.limited(decodes, depth, most, idle), max_num_seqs=max_seqs)
            if not self._worth_it(old, wanted, decodes):
                return
        self._rule = wanted
        self._decisions += 1
        self._decided_at = self._last_end
        room = min(self._room(wanted, decodes), float(self.limits.max_num_batched_tokens - decodes))
        took = wanted.cost.predict(decodes + 1, decodes + room, depth) * self.model.tail
        self._reason = (
            f"{room:.0f} prompt tokens at a depth of {depth:.0f} with {decodes} decodes take {took * 1e3:.0f} ms "
            f"in the worst twentieth of steps, {target * 1e3:.0f} ms are aimed at"
            + (
                f", {self._stretch:.1f} times the objective, so that first tokens keep theirs"
                if self._stretch > 1
                else ""
            )
        )

    def _wanted(self, target: float, sharing: int, decodes: int) -> TuningRule:
        """Return the rule under which an average step with `decodes` takes at most `target` seconds."""
        cost, limits = self.model.cost, self.limits
        # Without decodes a step may take longer, but a request that arrives during it waits for its end.
        idle = target if sharing > 1 else max(target, limits.ttft_objective_ms / 1e3 / 4 / self.model.tail)
        mix = self._prompt_tokens / self._answer_tokens if self._answer_tokens else 0.0
        max_seqs = max(
            _sequences_within(target - cost.base, cost.per_sequence + cost.per_token * mix),
            _sequences_within((target - cost.base) * self.LEAST_DECODES, cost.per_sequence),
        )
        if cost.predict(decodes + 1, decodes + self.LEAST_ROOM) <= target:
            # Always allow one more sequence than now, whatever the past mix: the next answers may be long.
            max_seqs = max(max_seqs, decodes + 1)
        return TuningRule(cost, target, idle, int(min(max(max_seqs, 1), limits.max_num_seqs)))

    def _room(self, rule: TuningRule, decodes: int) -> float:
        return max(rule.prompt_tokens(decodes, self._depth), self.LEAST_ROOM)

    def _worth_it(self, old: TuningRule, new: TuningRule, decodes: int) -> bool:
        """Whether `new` differs from `old` enough to switch."""
        pairs = [(self._room(old, d), self._room(new, d)) for d in (decodes, 0)]
        pairs.append((old.max_num_seqs, new.max_num_seqs))
        return any(b < (1 - self.SLACK) * a or b > (1 + self.HYSTERESIS) * a for a, b in pairs)

    def _apply(self, rule: TuningRule, decodes: int, backlog: int, waiting: int) -> None:
        limits, knobs = self.limits, self.knobs
        overload = self._overload(waiting)
        wanted = max(self._room(rule, decodes), overload * self._prompt_tokens)
        room = int(min(wanted, limits.max_num_batched_tokens))
        seats = min(max(rule.max_num_seqs, int(overload * self._answer_tokens)), limits.max_num_seqs)
        queued = waiting * self._prompt_tokens
        # Round to a sixteenth, so that the knobs do not change with every token of a prompt.
        grain = max(1 << max(room.bit_length() - 4, 0), self.LEAST_ROOM)
        enough = math.ceil(min(self._enough(decodes, backlog + queued), room) / self.LEAST_ROOM) * self.LEAST_ROOM
        room = max(min(room // grain * grain, enough), self.LEAST_ROOM)
        budget = min(decodes + room, limits.max_num_batched_tokens)
        chunk = min(room, limits.prefill_chunk)
        # All decodes continue during prefill: `room` already contains the delay that they cause.
        penalty = min(max(limits.max_join_penalty, budget / room), 1000.0)
        if (
            budget != knobs.max_num_batched_tokens
            or chunk != knobs.prefill_chunk
            or seats != knobs.max_num_seqs
            or penalty != knobs.max_join_penalty
        ):
            self.knobs = msgspec.structs.replace(
                limits, max_num_batched_tokens=budget, prefill_chunk=chunk, max_num_seqs=seats, max_join_penalty=penalty
            )

    def _overload(self, waiting: int) -> float:
        """Return the sequences per step that have to start, so that first tokens and later ones are late by one factor.

        If n of `waiting` sequences start per step of s seconds, a new one does after waiting / n steps. That time
        over the objective for first tokens T is s over the objective between tokens I if waiting / n = T / I. It
        takes n prompts' tokens in a step, and seats for n answers' tokens, each of which takes a step. Prompts that
        would miss T alone do not count: they would lengthen every step for an objective that none of them can keep.
        """
        first, between = self.limits.ttft_objective_ms / 1e3, self._between
        if self._prompt_tokens * self.model.cost.further(self._depth) > first:
            return 0.0
        return waiting * between / first

    def _enough(self, decodes: int, backlog: float) -> float:
        """Return the prompt tokens per step beyond which first tokens would come later.

        With r prompt tokens per step, a backlog of B tokens takes B / r steps, each with the fixed time f of its base
        and decodes, plus the tokens' own time; a new request also waits for half of the current step, which takes r
        tokens' time t in the share p of steps with prompts: f B / r + t p r / 2 is least at r = sqrt(2 f B / (t p)).
        A prompt of the usual length is not cut: the shortest comes first, so a request as long would wait for all of it
        anyway. Before the first answer no usual length is known, nor how much waits.
        """
        cost = self.model.cost
        further = cost.further(self._depth)
        if not self._answers or further <= 1e-9 or cost.base + cost.per_sequence <= 0:
            return math.inf
        backlog = max(backlog, self._prompt_tokens, self.LEAST_ROOM)
        fixed = cost.base + cost.per_sequence * decodes
        best = math.sqrt(2 * fixed * backlog / (further * max(self._prompt_steps, 0.02)))
        steps = max(1, round(backlog / best)) if best > 0 else backlog
        return max(backlog / steps, self._prompt_tokens)


def _sequences_within(seconds: float, each: float) -> float:
    return seconds / each if each > 1e-9 else math.inf


def _p95(values: list[float]) -> float | None:
    return sorted(values)[min(len(values) - 1, int(0.95 * len(values)))] if values else None


def suggest_preferred_sizes(gathered: Mapping[int, int], most: int = 4) -> list[int]:
    """At most `most` sizes, ascending, that leave the fewest requests waiting; none without observations.

    `gathered`: how often a batch of each size came together. A batcher with preferred sizes takes the largest of them
    that the waiting requests fill; what is left over waits on, so `n` waiting requests cost `n` minus that size. The
    sizes with the least sum of these costs are found exactly, by dynamic programming over the observed sizes (an
    optimum never needs another), in O(most · sizes²). Of equally good answers the one with fewer sizes is taken.
    """
    sizes = sorted(size for size, count in gathered.items() if size > 0 and count > 0)
    if not sizes or most < 1:
        return []
    before_count, before_sum = [0], [0]  # of all batches smaller than sizes[i]
    for size in sizes:
        before_count.append(before_count[-1] + gathered[size])
        before_sum.append(before_sum[-1] + size * gathered[size])

    def left_over(first: int, end: int) -> int:
        """Requests left over by the batches `first` to `end` (exclusive) if all of them are cut to the first's size."""
        return before_sum[end] - before_sum[first] - sizes[first] * (before_count[end] - before_count[first])

    # best[i]: the least left over by batches smaller than sizes[i] with i itself preferred, and how it is had.
    best: list[tuple[int, list[int]]] = [(before_sum[i], []) for i in range(len(sizes) + 1)]
    answer = best[-1]
    for _ in range(min(most, len(sizes))):
        best = [
            min(((best[j][0] + left_over(j, i), [*best[j][1], sizes[j]]) for j in range(i)), default=(1 << 62, []))
            for i in range(len(sizes) + 1)
        ]
        if best[-1][0] >= answer[0]:
            break
        answer = best[-1]
    return answer[1]
