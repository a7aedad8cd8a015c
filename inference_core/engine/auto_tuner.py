"""Tunes one model's token budget, prefill chunk and running sequences to its latency objectives (SPEC BS-10)."""

import math
from collections import deque
from dataclasses import dataclass, replace

import msgspec

from inference_core.engine.step_time_model import StepCost, StepTimeModel
from inference_core.protocol import Knobs, Tuning


@dataclass(frozen=True, slots=True)
class TuningRule:
    """A usual step takes `seconds` beside decodes, `idle_seconds` without any, at a cost learned before."""

    cost: StepCost
    seconds: float
    idle_seconds: float
    max_num_seqs: int

    def prompt_tokens(self, decodes: int, depth: float) -> float:
        """Prompt tokens, each attending to `depth` others, that fit a step beside `decodes`."""
        further = self.cost.further(depth)
        if further <= 1e-9:
            return math.inf
        left = (self.seconds if decodes else self.idle_seconds) - self.cost.predict(decodes + 1, decodes + 1)
        return left / further + 1

    def limited(self, decodes: int, depth: float, most: float, most_idle: float) -> "TuningRule":
        """The same with at most so many prompt tokens at `depth`, beside `decodes` and without any."""
        cost = self.cost
        seconds = min(self.seconds, cost.predict(decodes + 1, decodes + most, depth))
        return replace(self, seconds=seconds, idle_seconds=min(self.idle_seconds, cost.predict(1, most_idle, depth)))


class AutoTuner:
    """A controller without a clock: fed after every step and every answer, it gives the knobs for the next step.

    From a learned model of step time (`StepTimeModel`) follows how many prompt tokens fit beside the running decodes so
    that a step, in its worst twentieth, keeps the objective for the time between two tokens; and how many are enough
    (`_enough`), because with longer steps first tokens would come later. A step takes the lesser of the two. Seats are
    limited so that, at the measured mix of prompt and answer tokens, prompts are computed as fast as seats get free;
    not below what a quarter of the objective leaves to decodes.
    What several models sharing a core's time, or anything that the model does not know, adds to the measured time
    between tokens, is taken off the target by and by.

    The knobs given by the operator are the upper limits; with `auto_tune` off they are in force as they are, while the
    model goes on learning. Decisions are at least `EVERY` steps apart, growth is at most by `GROWTH` at once, and more
    room is not worth a change below `HYSTERESIS`, less room not below `SLACK`.
    """

    EVERY = 8
    WINDOW = 64
    GROWTH = 1.5
    HYSTERESIS = 0.1
    SLACK = 0.05
    # A prompt always advances: so many tokens a step, if the limits allow.
    LEAST_ROOM = 4
    LEAST_MARGIN = 0.5
    # Decodes may always take this share of what a step has beyond its base: the mix of the past, long prompts with
    # short answers say, must not leave those who come next, with long answers, waiting for a seat.
    LEAST_DECODES = 0.25

    def __init__(self, limits: Knobs) -> None:
        self.limits = limits
        self.knobs = limits
        self.model = StepTimeModel()
        self._rule: TuningRule | None = None
        self._decisions = 0
        self._reason = ""
        self._decided_at: float | None = None
        self._margin = 1.0
        self._steps_to_decision = self.EVERY
        self._decodes_left = 0
        self._last_end = 0.0
        self._gaps: list[float] = []
        self._gap_p95: float | None = None
        self._first_tokens: deque[float] = deque(maxlen=self.WINDOW)
        self._prompt_tokens = self._answer_tokens = 0.0
        self._prompt_steps = 1.0
        self._depth = 0.0

    def set_limits(self, limits: Knobs) -> Knobs:
        """Put the operator's knobs in force; tuning begins from them."""
        self.limits = self.knobs = limits
        self._rule = None
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
        """A step of `tokens` in `sequences` took `seconds` and ended at `now`, leaving `decodes` to go on.

        `depth`: how many tokens the prompt tokens of the step attended to, on average.
        `backlog`: prompt tokens that running sequences still lack; `waiting`: sequences in the queue; `sharing`: models
        that have work on this core, this one included. Returns the knobs for the next step.
        """
        self._prompt_steps += 0.02 * ((tokens > sequences) - self._prompt_steps)
        self.model.observe(sequences, tokens, depth, seconds)
        if tokens > sequences:
            self._depth = depth
        if self._decodes_left:
            self._gaps.append(now - self._last_end)
        self._decodes_left, self._last_end = decodes, now
        self._steps_to_decision -= 1
        if self._steps_to_decision <= 0:
            self._steps_to_decision = self.EVERY
            self.model.learn()
            self._compare_with_objective()
            if self.limits.auto_tune and self.model.is_warm:
                self._decide(max(decodes, 1), sharing)
        if self._rule is not None:
            self._apply(self._rule, decodes, backlog + waiting * self._prompt_tokens)
        return self.knobs

    def after_answer(self, first_token_seconds: float, prompt_tokens: int, answer_tokens: int) -> None:
        """An answer ended by itself: its time to first token, its computed prompt tokens, its answer tokens."""
        self._first_tokens.append(first_token_seconds)
        self._prompt_tokens += 0.05 * (prompt_tokens - self._prompt_tokens)
        self._answer_tokens += 0.05 * (answer_tokens - self._answer_tokens)

    def tuning(self) -> Tuning:
        """What is in force, why, and what it rests on."""
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
        """Every `WINDOW` gaps, adapt the margin to what the objective became."""
        if len(self._gaps) < self.WINDOW:
            return
        self._gap_p95 = _p95(self._gaps)
        self._gaps.clear()
        if not self.limits.auto_tune or self._gap_p95 is None:
            self._margin = 1.0
        elif self._gap_p95 > self.limits.itl_objective_ms / 1e3:
            self._margin = max(self.LEAST_MARGIN, self._margin * 0.95)
        elif self._gap_p95 < 0.9 * self.limits.itl_objective_ms / 1e3:
            self._margin = min(1.0, self._margin * 1.05)

    def _decide(self, decodes: int, sharing: int) -> None:
        target = self.limits.itl_objective_ms / 1e3 / sharing * self._margin
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
            f"{room:.0f} prompt tokens at a depth of {depth:.0f} beside {decodes} decodes take {took * 1e3:.0f} ms "
            f"in the worst twentieth of steps, {target * 1e3:.0f} ms are aimed at"
        )

    def _wanted(self, target: float, sharing: int, decodes: int) -> TuningRule:
        """The rule under which a usual step takes `target` seconds and no more, while `decodes` go on."""
        cost, limits = self.model.cost, self.limits
        # Nobody waits for a next token: a step may take longer, but who arrives during it waits for its end.
        idle = target if sharing > 1 else max(target, limits.ttft_objective_ms / 1e3 / 4 / self.model.tail)
        mix = self._prompt_tokens / self._answer_tokens if self._answer_tokens else 0.0
        max_seqs = max(
            _sequences_within(target - cost.base, cost.per_sequence + cost.per_token * mix),
            _sequences_within((target - cost.base) * self.LEAST_DECODES, cost.per_sequence),
        )
        if cost.predict(decodes + 1, decodes + self.LEAST_ROOM) <= target:
            # Whoever waits may join those who run, whatever the mix of the past was: their answers may be long.
            max_seqs = max(max_seqs, decodes + 1)
        return TuningRule(cost, target, idle, int(min(max(max_seqs, 1), limits.max_num_seqs)))

    def _room(self, rule: TuningRule, decodes: int) -> float:
        return max(rule.prompt_tokens(decodes, self._depth), self.LEAST_ROOM)

    def _worth_it(self, old: TuningRule, new: TuningRule, decodes: int) -> bool:
        """Whether `new` keeps the objective better, or gives noticeably more room."""
        pairs = [(self._room(old, d), self._room(new, d)) for d in (decodes, 0)]
        pairs.append((old.max_num_seqs, new.max_num_seqs))
        return any(b < (1 - self.SLACK) * a or b > (1 + self.HYSTERESIS) * a for a, b in pairs)

    def _apply(self, rule: TuningRule, decodes: int, backlog: float) -> None:
        limits, knobs = self.limits, self.knobs
        room = int(min(self._room(rule, decodes), limits.max_num_batched_tokens))
        # In steps of a sixteenth, so that the knobs do not change with every token of a prompt.
        grain = max(1 << max(room.bit_length() - 4, 0), self.LEAST_ROOM)
        enough = math.ceil(min(self._enough(decodes, backlog), room) / self.LEAST_ROOM) * self.LEAST_ROOM
        room = max(min(room // grain * grain, enough), self.LEAST_ROOM)
        budget = min(decodes + room, limits.max_num_batched_tokens)
        chunk = min(room, limits.prefill_chunk)
        # Beside a prompt all decodes go on: what a prompt may wait for them is in the room already.
        penalty = min(max(limits.max_join_penalty, budget / room), 1000.0)
        if (
            budget != knobs.max_num_batched_tokens
            or chunk != knobs.prefill_chunk
            or rule.max_num_seqs != knobs.max_num_seqs
            or penalty != knobs.max_join_penalty
        ):
            self.knobs = msgspec.structs.replace(
                limits,
                max_num_batched_tokens=budget,
                prefill_chunk=chunk,
                max_num_seqs=rule.max_num_seqs,
                max_join_penalty=penalty,
            )

    def _enough(self, decodes: int, backlog: float) -> float:
        """Prompt tokens of a step beyond which first tokens would come later, not earlier.

        With steps of r prompt tokens the last prompt of a backlog of B tokens is through after B / r steps, each with
        the time f of a base and its decodes, and B tokens' own time; and whoever arrives waits for half of the step
        under way, which takes r tokens' time where the share p of steps with prompts comes in:
        f B / r + t p r / 2 is least at r = sqrt(2 f B / (t p)).
        """
        cost = self.model.cost
        further = cost.further(self._depth)
        if further <= 1e-9 or cost.base + cost.per_sequence <= 0:
            return math.inf
        backlog = max(backlog, self._prompt_tokens, self.LEAST_ROOM)
        fixed = cost.base + cost.per_sequence * decodes
        best = math.sqrt(2 * fixed * backlog / (further * max(self._prompt_steps, 0.02)))
        steps = max(1, round(backlog / best)) if best > 0 else backlog
        return backlog / steps


def _sequences_within(seconds: float, each: float) -> float:
    return seconds / each if each > 1e-9 else math.inf


def _p95(values: list[float]) -> float | None:
    return sorted(values)[min(len(values) - 1, int(0.95 * len(values)))] if values else None
