"""Decides before each step of a model what is drafted, and learns from each what that was worth."""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.structs import replace

from inference_core.protocol import Knobs, SpeculationStats
from inference_core.scheduling.scheduler import Scheduler
from inference_core.scheduling.sequence import Sequence
from inference_core.speculation.acceptance import Acceptance
from inference_core.speculation.draft_lengths import Candidate, draft_lengths
from inference_core.speculation.drafter import Drafter, Reach
from inference_core.speculation.step_costs import StepCosts
from inference_core.step_plan import DraftLaw, Matcher, ScheduledSequence, StepPlan, ask_forced


class _Wanted(NamedTuple):
    """So many tokens are to be drafted for a sequence; what they promise is known."""

    sequence: Sequence
    tokens: int
    promise: int


@dataclass(slots=True)
class _Round:
    """The step under way: its size without drafts, whether it only decodes, what drafting took, how much was drafted,
    and who has drafts: of which promise, or because a grammar leaves no choice."""

    sequences: int
    decodes_only: bool
    draft_seconds: float = 0.0
    num_drafts: int = 0
    drafted: list[tuple[Sequence, int]] = field(default_factory=list)
    forced: list[Sequence] = field(default_factory=list)


class Speculator:
    """Of one model (SPEC SD-05, SD-06, SD-10).

    With `draft_control` "adaptive", drafts are made only where measured acceptance and measured time say that tokens
    come faster, with as many tokens for each sequence as pay; not beside prompts, which the budget is for then; and
    once in a while not at all, so that the time without drafts is known. With "fixed" every sequence has as many as
    possible. Tokens that a grammar forces are drafted whatever the knob says, since none of them is in vain (SPEC
    SO-02).

    Where steps could overlap (`OverlappingRunner`), drafts keep them from it: what is drafted depends on the last
    tokens. So after `IDLE_STEPS` steps in a row for which no draft pays, the controller rests for as long as
    `REST_STEPS` of them took, and lets steps overlap meanwhile.
    """

    LEAST_GAIN = 0.03
    PLAIN_EVERY = 64
    IDLE_STEPS = 4
    REST_STEPS = 64
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
        """`drafters` by the value of the knob `speculation` that puts them in force. `most_drafts`: as many as the
        model's runner verifies in a step."""
        self._most_drafts = most_drafts
        self._scheduler = scheduler
        self._drafters = drafters
        self._clock = clock
        self._costs = StepCosts()
        # By the class of the proposal (`Drafter.promise`): of all, and of each sequence.
        self._overall: dict[int, Acceptance] = {}
        self._of_sequence: dict[Sequence, dict[int, Acceptance]] = {}
        self._active_drafter: str = "off"
        self._until_plain = self.PLAIN_EVERY
        self._idle_steps = 0
        self._rests_until = -math.inf
        self._round = _Round(0, False)
        self._bound: list[Sequence] = []
        self._stats = SpeculationStats()
        scheduler.on_leave = self.forget

    @property
    def is_on(self) -> bool:
        """Whether the next step may have drafts, so that all tokens must be known before it is planned."""
        knobs = self._scheduler.knobs
        rests = knobs.draft_control == "adaptive" and self._clock() < self._rests_until
        return knobs.speculation in self._drafters and not rests

    def draft(self, plan: StepPlan) -> None:
        """Add drafts to the step that was just planned."""
        knobs, name = self._scheduler.knobs, self._scheduler.knobs.speculation
        if name != self._active_drafter:
            self._switch_to(name)
        drafter = self._drafters.get(name)
        bound = [s for s in plan.sequences if s.sample is not None and s.sample.matcher is not None]
        if drafter is None and not bound:
            return
        self._round = _Round(len(plan.sequences), all(len(s.token_ids) == 1 and s.sample for s in plan.sequences))
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
                    # What a grammar leaves of a law is not what the draft was drawn from.
                    laws = draft.laws if sequence.sample_spec.matcher is None else None
                    self._add(sequence, draft.token_ids, laws)
                    self._round.drafted.append((sequence, promise))
        self._round.draft_seconds = self._clock() - began

    def learn(self, seconds: float) -> None:
        """The step that drafts were last added to is done, after `seconds`, drafting included."""
        # The answers come while outputs are delivered and the next step is planned.
        still = (sequence.sample_spec.matcher for sequence in self._bound)
        ask_forced(matcher for matcher in still if matcher is not None)
        self._bound = []
        if self._active_drafter not in self._drafters:
            return
        done, verify_seconds = self._round, seconds - self._round.draft_seconds
        verified = [*(s for s, _ in done.drafted), *done.forced]
        drafts = sum(s.share.num_drafts for s in verified)
        plain_seconds = self._costs.seconds(done.sequences)
        if done.decodes_only:
            self._costs.observe(done.sequences + drafts, verify_seconds)
        for sequence, promise in done.drafted:
            accepted, drafted = sequence.num_accepted, sequence.share.num_drafts
            if drafted:
                self._record(sequence, promise, accepted, drafted)
                self._count(accepted, drafted)
        if drafts and done.decodes_only and plain_seconds:
            emitted = done.sequences + sum(s.num_accepted for s in verified)
            self._stats.seconds += seconds
            self._stats.plain_seconds += plain_seconds * emitted / done.sequences
        elif not drafts:
            for overall in self._overall.values():
                overall.fade()
        self._idle_steps = 0 if drafts else self._idle_steps + 1
        if self._idle_steps >= self.IDLE_STEPS:
            self._idle_steps = 0
            self._rests_until = self._clock() + self.REST_STEPS * (plain_seconds or 0.0)

    def forget(self, sequence: Sequence) -> None:
        """`sequence` gives up its seat: nothing is held for it on return."""
        self._of_sequence.pop(sequence, None)
        for drafter in self._drafters.values():
            drafter.forget(sequence)

    def give_way(self) -> bool:
        """Free the memory of the arena that drafters hold; whether there was any."""
        gave = [drafter.give_way() for drafter in self._drafters.values()]
        return any(gave)

    def stats(self) -> SpeculationStats | None:
        """Counts since start; None if nothing was ever drafted."""
        stats = self._stats
        return replace(stats, proposed=[*stats.proposed], accepted=[*stats.accepted]) if stats.proposed else None

    def check_integrity(self) -> None:
        """Raises `IntegrityError` if drafters hold what they should not."""
        for drafter in self._drafters.values():
            drafter.check_integrity()

    # -- choice ----------------------------------------------------------------------------------

    def _skip_ahead(self, bound: list[ScheduledSequence], knobs: Knobs) -> None:
        """Draft what grammars force."""
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
        """How many more tokens the step's budget and the runner let be drafted."""
        return min(self._scheduler.draft_room, self._most_drafts - self._round.num_drafts)

    def _add(self, sequence: Sequence, token_ids: list[int], laws: list[DraftLaw] | None) -> None:
        self._scheduler.add_drafts(sequence, token_ids, laws)
        self._round.num_drafts += sequence.share.num_drafts

    def _fixed(self, plan: StepPlan, drafter: Drafter, knobs: Knobs) -> list[_Wanted]:
        room, wanted = self._room, []
        for sequence, (most, promise) in self._reaches(plan, drafter, knobs):
            if room > 0:
                wanted.append(_Wanted(sequence, min(most, room), promise))
                room -= min(most, room)
        return wanted

    def _paying(self, plan: StepPlan, drafter: Drafter, knobs: Knobs) -> list[_Wanted]:
        room, rows = self._room, len(plan.sequences)
        if not (self._round.decodes_only and room > 0 and self._costs.seconds(rows)):
            return []
        self._until_plain -= 1
        if self._until_plain <= 0:
            self._until_plain = self.PLAIN_EVERY
            return []
        reaches = self._reaches(plan, drafter, knobs)
        if not reaches:
            return []
        candidates, known = [], []
        for sequence, (most, promise) in reaches:
            prior = self._overall[promise].rates() if promise in self._overall else (Acceptance.START, Acceptance.START)
            own = self._of_sequence.get(sequence, {}).get(promise)
            candidates.append(Candidate(*(prior if own is None else own.rates(prior)), most))
            known.append(own)
        lengths = draft_lengths(candidates, rows, room, self._verify_seconds, drafter.seconds, self.LEAST_GAIN)
        for own, length in zip(known, lengths, strict=True):
            if own is not None and not length:
                own.fade()
        return [
            _Wanted(sequence, length, reach.promise)
            for (sequence, reach), length in zip(reaches, lengths, strict=True)
            if length
        ]

    def _reaches(self, plan: StepPlan, drafter: Drafter, knobs: Knobs) -> list[tuple[Sequence, Reach]]:
        """The sequences that decode in this step and that tokens could be drafted for, with how many."""
        running, reaches = self._scheduler.running, []
        for share in plan.sequences:
            if share.sample is None or len(share.token_ids) > 1:
                continue
            sequence = running[share.sequence_id]
            most = _most_drafts(sequence, knobs)
            if sequence.speculate and most > 0:
                reach = drafter.reach(sequence, knobs, most)
                if reach.most:
                    reaches.append((sequence, reach))
        return reaches

    def _verify_seconds(self, rows: int) -> float:
        seconds = self._costs.seconds(rows)
        assert seconds is not None  # a step of fewer rows has been measured
        return max(seconds, 1e-9)

    def _record(self, sequence: Sequence, promise: int, accepted: int, drafted: int) -> None:
        self._overall.setdefault(promise, Acceptance(self._MODEL_KEEP)).record(accepted, drafted)
        if sequence.id in self._scheduler.running:
            own = self._of_sequence.setdefault(sequence, {})
            own.setdefault(promise, Acceptance(self._SEQUENCE_KEEP)).record(accepted, drafted)

    def _switch_to(self, name: str) -> None:
        """What was held for another way of drafting is free."""
        for other, drafter in self._drafters.items():
            if other != name:
                for sequence in self._scheduler.running.values():
                    drafter.forget(sequence)
        self._of_sequence.clear()
        self._overall.clear()
        self._active_drafter = name

    def _count(self, accepted: int, drafted: int) -> None:
        stats = self._stats
        for counts, number in ((stats.proposed, drafted), (stats.accepted, accepted)):
            counts += [0] * (number - len(counts))
            for place in range(number):
                counts[place] += 1
        stats.rounds += 1


def _most_drafts(sequence: Sequence, knobs: Knobs) -> int:
    """The last token of an answer is always the model's own."""
    return min(knobs.max_draft_tokens, sequence.max_output_tokens - len(sequence.output_token_ids) - 1)
