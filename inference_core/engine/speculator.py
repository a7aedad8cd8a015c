"""Decides before each step of a model what to draft, and measures the gain after it.

The draft length of each sequence is chosen to maximise throughput (SPEC SD-04, SD-05), from the measured acceptance
rates of draft tokens, of one sequence or of all.
"""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from msgspec.structs import replace

from inference_core.engine.drafter import Drafter, Reach, StepCosts
from inference_core.engine.scheduler import Scheduler
from inference_core.engine.sequence import Sequence
from inference_core.kv_cache.layout import KVLayout
from inference_core.protocol import Knobs, SpeculationStats
from inference_core.step_plan import DraftLaw, Matcher, ScheduledSequence, StepPlan, ask_forced


class Acceptance:
    """Rates for the first token of a draft (`first`) and, once that is accepted, for each further one (`later`).

    They differ: whether a text is being copied is uncertain, but not how the copy continues. Older rounds weigh less by
    `keep`; `prior`, worth a few tokens, replaces missing observations.
    """

    PRIOR_WEIGHT = 4.0
    MOST = 0.98  # a cautious prior
    START = 0.6
    _IDLE = 0.99

    def __init__(self, keep: float) -> None:
        self._keep = keep
        self._first = [0.0, 0.0]  # hits, trials
        self._later = [0.0, 0.0]

    def record(self, accepted: int, drafted: int) -> None:
        """Record that the first `accepted` of `drafted` tokens (at least one) were accepted."""
        keep = self._keep
        tested = min(accepted + 1, drafted)
        for counts, hits, trials in ((self._first, accepted > 0, 1), (self._later, max(accepted - 1, 0), tested - 1)):
            decay = keep**trials
            counts[0] = counts[0] * decay + hits
            counts[1] = counts[1] * decay + trials

    def fade(self) -> None:
        """Weaken the past after a step without drafts, so that drafting is tried again."""
        for counts in (self._first, self._later):
            counts[0] *= self._IDLE
            counts[1] *= self._IDLE

    def rates(self, prior: tuple[float, float] = (START, START)) -> tuple[float, float]:
        """Return the acceptance rates of the first token and of each further one."""
        first, later = (
            min((hits + expected * self.PRIOR_WEIGHT) / (trials + self.PRIOR_WEIGHT), self.MOST)
            for (hits, trials), expected in zip((self._first, self._later), prior, strict=True)
        )
        return first, later


class DraftAccount:
    """What drafts may lose before they stop, in steps without drafts: what they gained lately, and a small share of the
    steps since. So where they do not pay they cost that share of the time at most, however wrong predictions are.

    It begins with `START` steps; gains lift it to `MOST` at most, and losses, which may be errors of measurement, lower
    it to -`DEBT` at most.
    """

    START = 4.0
    MOST = 16.0
    DEBT = 1.0
    SHARE = 0.002

    def __init__(self) -> None:
        self._steps = self.START

    @property
    def is_empty(self) -> bool:
        return self._steps <= 0

    def record(self, gain: float) -> None:
        """Record that a step's drafts gained the time of so many steps; below 0 if they cost more than they gave."""
        self._steps = max(min(self._steps + gain, self.MOST), -self.DEBT)

    def wait(self, steps: int) -> None:
        if self._steps < self.START:
            self._steps = min(self._steps + steps * self.SHARE, self.START)


class Candidate(NamedTuple):
    """A sequence for which up to `most` tokens can be drafted, with its `Acceptance.rates`."""

    first: float
    later: float
    most: int


def draft_lengths(
    candidates: list[Candidate],
    rows: int,
    room: int,
    plain_seconds: float,
    verify_seconds: Callable[[int], float],
    draft_seconds: Callable[[int], float],
    least_gain: float,
) -> list[int]:
    """Return the tokens to draft for each candidate, at most `room` in all, on top of `rows`, one per sequence.

    Drafts are added by likelihood, so each total has its best choice of drafts; the total with the most expected tokens
    per second is taken if it gains more than `least_gain` (a share) over no drafts.
    `plain_seconds`: of a step without drafts; `verify_seconds`: of a step of so many rows; `draft_seconds`: of one more
    token for so many sequences.
    """
    heap = [(-c.first, i) for i, c in enumerate(candidates) if c.most > 0]
    heapify(heap)
    lengths = [0] * len(candidates)
    rounds: list[int] = []
    order: list[int] = []
    tokens, drafting, count = float(rows), 0.0, 0
    best = rows / plain_seconds * (1 + least_gain)
    while heap and len(order) < room:
        chance, index = heappop(heap)
        depth = lengths[index]
        if depth == len(rounds):
            rounds.append(0)
        drafting += draft_seconds(rounds[depth] + 1) - (draft_seconds(rounds[depth]) if rounds[depth] else 0.0)
        rounds[depth] += 1
        lengths[index] += 1
        order.append(index)
        tokens -= chance
        speed = tokens / (verify_seconds(rows + len(order)) + drafting)
        if speed > best:
            best, count = speed, len(order)
        if lengths[index] < candidates[index].most:
            heappush(heap, (chance * candidates[index].later, index))
    for index in order[count:]:
        lengths[index] -= 1
    return lengths


class _Wanted(NamedTuple):
    """A request for `tokens` drafts of a sequence, of the class `promise`."""

    sequence: Sequence
    tokens: int
    promise: int


@dataclass(slots=True)
class _Watched:
    """What is known of one sequence."""

    look_at: int = 0
    """The number of tokens at which it is looked at again."""
    pause: int = 0
    """How many tokens came between its last two looks."""
    acceptance: dict[int, Acceptance] = field(default_factory=dict)


@dataclass(slots=True)
class _Round:
    """The current step."""

    step: int
    sequences: int
    decodes_only: bool
    draft_seconds: float = 0.0
    num_drafts: int = 0
    drafted: list[tuple[Sequence, int]] = field(default_factory=list)
    """The sequences with drafts, each with the promise of its drafter."""
    forced: list[Sequence] = field(default_factory=list)
    """The sequences with drafts that a grammar forces."""


class Speculator:
    """Speculation of one model (SPEC SD-05, SD-06, SD-10).

    With `draft_control` "adaptive", it drafts only if measured acceptance and time predict a gain, with the draft
    length of each sequence that gains most; never in steps with prompts, which then use the budget; and it skips a step
    now and then to measure the time without drafts. With "fixed" every sequence has as many drafts as possible. Tokens
    that a grammar forces are always drafted, since all of them are accepted (SPEC SO-02).

    Where drafts do not pay they cost next to nothing: a sequence for which nothing is worth drafting is looked at again
    after 1, 2, 4, … up to `MOST_PAUSE` tokens; drafts of a class that lost time wait until its account allows them
    (`DraftAccount`); and a step without drafts may take several tokens in one call, whose time drafts have to beat.

    Drafting prevents overlapping steps (`OverlappingRunner`), because drafts depend on the last tokens. So after
    `IDLE_STEPS` steps in a row without a worthwhile draft, drafting pauses for `REST_STEPS` steps, which may overlap.
    """

    LEAST_GAIN = 0.03
    PLAIN_EVERY = 64
    IDLE_STEPS = 4
    REST_STEPS = 64
    MOST_PAUSE = 16
    _SEQUENCE_KEEP = 0.95
    _MODEL_KEEP = 0.999

    def __init__(
        self,
        scheduler: Scheduler,
        drafters: dict[str, Drafter],
        clock: Callable[[], float],
        *,
        most_drafts: int = sys.maxsize,
    ) -> None:
        """`drafters` by the value of the knob `speculation` that selects them. `most_drafts`: the drafts that the
        model's runner verifies in one step at most."""
        self._most_drafts = most_drafts
        self._scheduler = scheduler
        self._drafters = drafters
        self._clock = clock
        # Of single steps, and per token of steps without drafts, of which one call may take several.
        self._costs, self._plain = StepCosts(), StepCosts()
        # By class of the proposal (`Reach.promise`).
        self._overall: dict[int, Acceptance] = {}
        self._accounts: dict[int, DraftAccount] = {}
        self._watched: dict[Sequence, _Watched] = {}
        self._active_drafter: str = "off"
        self._until_plain = self.PLAIN_EVERY
        self._idle_steps = 0
        self._rests_until = -math.inf
        self._round = _Round(0, 0, False)
        self._next_step, self._ended = -1, 0.0
        self._bound: list[Sequence] = []
        self._stats = SpeculationStats()
        scheduler.on_leave = self.forget

    @property
    def is_on(self) -> bool:
        """Whether the next step may have drafts, which need all tokens before planning."""
        knobs = self._scheduler.knobs
        rests = knobs.draft_control == "adaptive" and self._clock() < self._rests_until
        return knobs.speculation in self._drafters and not rests

    @property
    def drafts_always(self) -> bool:
        """Whether as much as possible is drafted after every token, whatever is measured."""
        knobs = self._scheduler.knobs
        return knobs.draft_control == "fixed" and knobs.speculation in self._drafters

    def draft(self, plan: StepPlan) -> None:
        """Add drafts to the step just planned."""
        knobs, name = self._scheduler.knobs, self._scheduler.knobs.speculation
        if name != self._active_drafter:
            self._switch_to(name)
        drafter = self._drafters.get(name)
        bound = [s for s in plan.sequences if s.sample is not None and s.sample.matcher is not None]
        if drafter is None and not bound:
            return
        self._round = _Round(
            plan.step, len(plan.sequences), all(len(s.token_ids) == 1 and s.sample for s in plan.sequences)
        )
        if plan.copies:
            return
        began = self._clock()
        if bound:
            self._skip_ahead(bound, knobs)
        if drafter is None:
            return
        wanted = (
            self._fixed(plan, drafter, knobs) if knobs.draft_control == "fixed" else self._paying(plan, drafter, knobs)
        )
        if wanted:
            drafts = drafter.propose([(w.sequence, w.tokens) for w in wanted], knobs)
            for (sequence, _, promise), draft in zip(wanted, drafts, strict=True):
                if draft.token_ids:
                    # A grammar changes the distribution, so the law that the draft was drawn from does not apply.
                    laws = draft.laws if sequence.sample_spec.matcher is None else None
                    self._add(sequence, draft.token_ids, laws)
                    self._round.drafted.append((sequence, promise))
        self._round.draft_seconds = self._clock() - began

    def learn(self, seconds: float, steps: int = 1) -> None:
        """Record that the last call took `seconds`, drafting included, for so many decode steps."""
        # The grammar processes answer while outputs are delivered and the next step is planned.
        if self._bound:
            still = (sequence.sample_spec.matcher for sequence in self._bound)
            ask_forced(matcher for matcher in still if matcher is not None)
            self._bound = []
        if self._active_drafter not in self._drafters:
            return
        done, now = self._round, self._clock()
        if done.step == self._next_step:
            # What happens between two calls takes time too, which several steps in one call share.
            seconds = now - self._ended
        self._next_step, self._ended = done.step + steps if self._scheduler.running else -1, now
        verified = [*(s for s, _ in done.drafted), *done.forced]
        drafts = sum(s.share.num_drafts for s in verified)
        plain_seconds = self._plain.seconds(done.sequences)
        if done.decodes_only:
            self._observe(done.sequences, drafts, (seconds - done.draft_seconds) / steps, steps)
        for sequence, promise in done.drafted:
            accepted, drafted = sequence.num_accepted, sequence.share.num_drafts
            if drafted:
                self._record(sequence, promise, accepted, drafted)
                self._count(accepted, drafted)
        if drafts and done.decodes_only and plain_seconds:
            emitted = done.sequences + sum(s.num_accepted for s in verified)
            self._stats.seconds += seconds
            self._stats.plain_seconds += plain_seconds * emitted / done.sequences
            self._settle(done, drafts, plain_seconds)
        elif not drafts:
            for overall in self._overall.values():
                overall.fade()
            for account in self._accounts.values():
                account.wait(steps)
        self._idle_steps = 0 if drafts else self._idle_steps + 1
        if self._idle_steps >= self.IDLE_STEPS:
            self._idle_steps = 0
            self._rests_until = self._clock() + self.REST_STEPS * (plain_seconds or 0.0)

    def _observe(self, sequences: int, drafts: int, seconds: float, steps: int) -> None:
        """Learn the seconds of each of `steps` steps that decoded `sequences` with so many drafts."""
        if not drafts:
            self._plain.observe(sequences, seconds, steps)
        if steps == 1 or self._costs.seconds(sequences) is None:
            self._costs.observe(sequences + drafts, seconds)

    def _settle(self, done: _Round, drafts: int, plain_seconds: float) -> None:
        """Put down to each class what its drafts gained and cost, in steps without drafts."""
        seconds = self._verify_seconds(done.sequences + drafts) + done.draft_seconds
        cost = (seconds / plain_seconds - 1) / drafts
        for sequence, promise in done.drafted:
            gain = sequence.num_accepted / done.sequences - cost * sequence.share.num_drafts
            self._accounts.setdefault(promise, DraftAccount()).record(gain)

    def forget(self, sequence: Sequence) -> None:
        """Free what is held for `sequence`, which stops running."""
        # No drafter was asked about others.
        if self._watched.pop(sequence, None) is not None:
            for drafter in self._drafters.values():
                drafter.forget(sequence)

    def give_way(self) -> bool:
        """Free the arena memory that drafters hold; return whether there was any."""
        gave = [drafter.give_way() for drafter in self._drafters.values()]
        return any(gave)

    def lay_out(self, model: str, layout: KVLayout) -> None:
        """The blocks of `model` have another `layout` from now on."""
        for drafter in self._drafters.values():
            drafter.lay_out(model, layout)

    def stats(self) -> SpeculationStats | None:
        """Return counts since start; None if nothing was ever drafted."""
        stats = self._stats
        return replace(stats, proposed=[*stats.proposed], accepted=[*stats.accepted]) if stats.proposed else None

    def check_integrity(self) -> None:
        """Raises `IntegrityError` if drafters hold wrong memory."""
        for drafter in self._drafters.values():
            drafter.check_integrity()

    # -- choice ----------------------------------------------------------------------------------

    def _skip_ahead(self, bound: list[ScheduledSequence], knobs: Knobs) -> None:
        """Draft the tokens that grammars force."""
        matchers: list[tuple[Sequence, Matcher]] = []
        for share in bound:
            sequence = self._scheduler.running[share.sequence_id]
            if len(share.token_ids) == 1 and share.sample is not None and share.sample.matcher is not None:
                matchers.append((sequence, share.sample.matcher))
        matchers = [(sequence, matcher) for sequence, matcher in matchers if _most_drafts(sequence, knobs) >= 1]
        self._bound = [sequence for sequence, _ in matchers]
        ask_forced(matcher for _, matcher in matchers)
        for sequence, matcher in matchers:
            most = min(_most_drafts(sequence, knobs), self._room)
            forced = matcher.forced_tokens()[:most] if most >= 1 else []
            if forced:
                self._add(sequence, forced, None)
                self._round.forced.append(sequence)

    @property
    def _room(self) -> int:
        """How many more tokens may be drafted within the step's budget and the runner's limit."""
        return min(self._scheduler.draft_room, self._most_drafts - self._round.num_drafts)

    def _add(self, sequence: Sequence, token_ids: list[int], laws: list[DraftLaw] | None) -> None:
        self._scheduler.add_drafts(sequence, token_ids, laws)
        self._round.num_drafts += sequence.share.num_drafts

    def _fixed(self, plan: StepPlan, drafter: Drafter, knobs: Knobs) -> list[_Wanted]:
        room, wanted = self._room, []
        for share in plan.sequences:
            if share.sample is not None and len(share.token_ids) == 1:
                sequence = self._scheduler.running[share.sequence_id]
                self._watched.setdefault(sequence, _Watched())
                most, promise = self._reach(sequence, drafter, knobs)
                if min(most, room) > 0:
                    wanted.append(_Wanted(sequence, min(most, room), promise))
                    room -= min(most, room)
        return wanted

    def _paying(self, plan: StepPlan, drafter: Drafter, knobs: Knobs) -> list[_Wanted]:
        room, rows = self._room, len(plan.sequences)
        if not (self._round.decodes_only and room > 0 and (plain_seconds := self._plain.seconds(rows))):
            return []
        looked: list[tuple[Sequence, _Watched]] = []
        for share in plan.sequences:
            if share.num_drafts:
                continue  # what its grammar forces
            sequence = self._scheduler.running[share.sequence_id]
            watched = self._watched.get(sequence) or self._watched.setdefault(sequence, _Watched())
            if len(sequence.token_ids) >= watched.look_at:
                looked.append((sequence, watched))
        if not looked:
            return []
        candidates, proposals = [], []
        for sequence, watched in looked:
            reach = self._reach(sequence, drafter, knobs)
            account = self._accounts.get(reach.promise)
            if reach.most and not (account and account.is_empty):
                overall, own = self._overall.get(reach.promise), watched.acceptance.get(reach.promise)
                prior = overall.rates() if overall else (Acceptance.START, Acceptance.START)
                candidates.append(Candidate(*(own.rates(prior) if own else prior), reach.most))
                proposals.append((sequence, watched, reach.promise))
        lengths = draft_lengths(
            candidates, rows, room, max(plain_seconds, 1e-9), self._verify_seconds, drafter.seconds, self.LEAST_GAIN
        )
        wanted = []
        for (sequence, watched, promise), length in zip(proposals, lengths, strict=True):
            if length:
                wanted.append(_Wanted(sequence, length, promise))
            elif promise in watched.acceptance:
                watched.acceptance[promise].fade()
        if wanted:
            self._until_plain -= 1
            if self._until_plain <= 0:
                self._until_plain = self.PLAIN_EVERY
                return []
        drafted = {each.sequence for each in wanted}
        for sequence, watched in looked:
            watched.pause = 0 if sequence in drafted else min(max(watched.pause * 2, 1), self.MOST_PAUSE)
            watched.look_at = len(sequence.token_ids) + watched.pause
        return wanted

    def _reach(self, sequence: Sequence, drafter: Drafter, knobs: Knobs) -> Reach:
        """Return how many tokens can be drafted for a sequence that decodes in this step."""
        most = _most_drafts(sequence, knobs)
        return drafter.reach(sequence, knobs, most) if sequence.request.speculate and most > 0 else Reach(0)

    def _verify_seconds(self, rows: int) -> float:
        seconds = self._costs.seconds(rows)
        assert seconds is not None  # a step of fewer rows has been measured
        return max(seconds, 1e-9)

    def _record(self, sequence: Sequence, promise: int, accepted: int, drafted: int) -> None:
        self._overall.setdefault(promise, Acceptance(self._MODEL_KEEP)).record(accepted, drafted)
        if sequence.id in self._scheduler.running:
            own = self._watched.setdefault(sequence, _Watched()).acceptance
            own.setdefault(promise, Acceptance(self._SEQUENCE_KEEP)).record(accepted, drafted)

    def _switch_to(self, name: str) -> None:
        """Switch the drafter and free what the others hold."""
        for other, drafter in self._drafters.items():
            if other != name:
                for sequence in self._scheduler.running.values():
                    drafter.forget(sequence)
        self._watched.clear()
        self._overall.clear()
        self._accounts.clear()
        self._active_drafter = name

    def _count(self, accepted: int, drafted: int) -> None:
        stats = self._stats
        for counts, number in ((stats.proposed, drafted), (stats.accepted, accepted)):
            counts += [0] * (number - len(counts))
            for position in range(number):
                counts[position] += 1
        stats.rounds += 1


def _most_drafts(sequence: Sequence, knobs: Knobs) -> int:
    """Return the draft limit of `sequence`; the last token of an answer is never drafted."""
    return min(knobs.max_draft_tokens, sequence.max_output_tokens - len(sequence.output_token_ids) - 1)
