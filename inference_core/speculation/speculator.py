"""Decides before each step of a model what is drafted, and learns from each what that was worth."""

from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from inference_core.protocol import Knobs, SpeculationStats
from inference_core.scheduler import Scheduler
from inference_core.sequence import Sequence
from inference_core.speculation.acceptance import Acceptance
from inference_core.speculation.draft_lengths import Candidate, draft_lengths
from inference_core.speculation.drafter import Drafter
from inference_core.speculation.step_costs import StepCosts
from inference_core.step_plan import ScheduledSequence, StepPlan


@dataclass(slots=True)
class _Round:
    """The step under way: its size without drafts, whether it only decodes, what drafting took, and who has drafts: of
    which promise, or because a grammar leaves no choice."""

    sequences: int
    decodes_only: bool
    draft_seconds: float = 0.0
    drafted: list[tuple[Sequence, int]] = field(default_factory=list)
    forced: list[Sequence] = field(default_factory=list)


class Speculator:
    """Of one model (SPEC SD-05, SD-06, SD-10).

    With `draft_control` "adaptive", drafts are made only where measured acceptance and measured time say that tokens
    come faster, with as many tokens for each sequence as pay; not beside prompts, which the budget is for then; and
    once in a while not at all, so that the time without drafts is known. With "fixed" every sequence has as many as
    possible. Tokens that a grammar forces are drafted whatever the knob says, since none of them is in vain (SPEC
    SO-02).
    """

    LEAST_GAIN = 0.03
    PLAIN_EVERY = 64
    _SEQUENCE_KEEP = 0.95
    _MODEL_KEEP = 0.999

    def __init__(
        self, scheduler: Scheduler, drafters: dict[str, Drafter], clock: Callable[[], float], *, verifies: bool = True
    ) -> None:
        """`drafters` by the value of the knob `speculation` that puts them in force. `verifies`: whether the model's
        runner can tell whether drafts are right."""
        self._verifies = verifies
        self._scheduler = scheduler
        self._drafters = drafters
        self._clock = clock
        self._costs = StepCosts()
        # By the class of the proposal (`Drafter.promise`): of all, and of each sequence.
        self._overall: dict[int, Acceptance] = {}
        self._of_sequence: dict[Sequence, dict[int, Acceptance]] = {}
        self._in_force: str = "off"
        self._until_plain = self.PLAIN_EVERY
        self._round = _Round(0, False)
        self._stats = SpeculationStats()
        scheduler.on_leave = self.forget

    @property
    def is_on(self) -> bool:
        """Whether steps may have drafts, so that all tokens must be known before they are planned."""
        return self._scheduler.knobs.speculation in self._drafters

    def draft(self, plan: StepPlan) -> None:
        """Add drafts to the step that was just planned."""
        knobs, name = self._scheduler.knobs, self._scheduler.knobs.speculation
        if name != self._in_force:
            self._switch_to(name)
        drafter = self._drafters.get(name)
        bound = [s for s in plan.sequences if s.sample is not None and s.sample.matcher is not None]
        if drafter is None and not bound:
            return
        self._round = _Round(len(plan.sequences), all(len(s.token_ids) == 1 and s.sample for s in plan.sequences))
        if plan.copies:
            return
        began = self._clock()
        if bound and self._verifies:
            self._skip_ahead(bound, knobs)
        if drafter is None:
            return
        wanted = (
            self._fixed(plan, drafter, knobs) if knobs.draft_control == "fixed" else self._paying(plan, drafter, knobs)
        )
        if wanted:
            promises = {sequence: drafter.promise(sequence) for sequence, _ in wanted}
            for (sequence, _), draft in zip(wanted, drafter.propose(wanted, knobs), strict=True):
                if draft.token_ids:
                    # What a grammar leaves of a law is not what the draft was drawn from.
                    laws = draft.laws if sequence.sample_spec.matcher is None else None
                    self._scheduler.add_drafts(sequence, draft.token_ids, laws)
                    self._round.drafted.append((sequence, promises[sequence]))
        self._round.draft_seconds = self._clock() - began

    def learn(self, seconds: float) -> None:
        """The step that drafts were last added to is done, after `seconds`, drafting included."""
        if self._in_force not in self._drafters:
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
        for share in bound:
            sequence = self._scheduler.running[share.sequence_id]
            most = min(self._most_drafts(sequence, knobs), self._scheduler.draft_room)
            if len(share.token_ids) > 1 or most < 1 or share.sample is None or share.sample.matcher is None:
                continue
            forced = share.sample.matcher.forced_tokens()[:most]
            if forced:
                self._scheduler.add_drafts(sequence, forced, None)
                self._round.forced.append(sequence)

    def _most_drafts(self, sequence: Sequence, knobs: Knobs) -> int:
        """The last token of an answer is always the model's own."""
        return min(knobs.max_draft_tokens, sequence.max_output_tokens - len(sequence.output_token_ids) - 1)

    def _fixed(self, plan: StepPlan, drafter: Drafter, knobs: Knobs) -> list[tuple[Sequence, int]]:
        room, wanted = self._scheduler.draft_room, []
        for sequence, most in self._reaches(plan, drafter, knobs):
            if room and most:
                wanted.append((sequence, min(most, room)))
                room -= min(most, room)
        return wanted

    def _paying(self, plan: StepPlan, drafter: Drafter, knobs: Knobs) -> list[tuple[Sequence, int]]:
        room, rows = self._scheduler.draft_room, len(plan.sequences)
        if not (self._round.decodes_only and room and self._costs.seconds(rows)):
            return []
        self._until_plain -= 1
        if self._until_plain <= 0:
            self._until_plain = self.PLAIN_EVERY
            return []
        reaches = [(s, most) for s, most in self._reaches(plan, drafter, knobs) if most]
        if not reaches:
            return []
        candidates, known = [], []
        for sequence, most in reaches:
            promise = drafter.promise(sequence)
            prior = self._overall[promise].rates() if promise in self._overall else (Acceptance.START, Acceptance.START)
            own = self._of_sequence.get(sequence, {}).get(promise)
            candidates.append(Candidate(*(prior if own is None else own.rates(prior)), most))
            known.append(own)
        lengths = draft_lengths(candidates, rows, room, self._verify_seconds, drafter.seconds, self.LEAST_GAIN)
        for own, length in zip(known, lengths, strict=True):
            if own is not None and not length:
                own.fade()
        return [(sequence, length) for (sequence, _), length in zip(reaches, lengths, strict=True) if length]

    def _reaches(self, plan: StepPlan, drafter: Drafter, knobs: Knobs) -> list[tuple[Sequence, int]]:
        """The sequences that decode in this step, with how many tokens could be drafted for each."""
        running, reaches = self._scheduler.running, []
        for share in plan.sequences:
            if share.sample is None or len(share.token_ids) > 1:
                continue
            sequence = running[share.sequence_id]
            most = self._most_drafts(sequence, knobs)
            if sequence.speculate and most > 0:
                reaches.append((sequence, drafter.reach(sequence, knobs, most)))
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
        self._in_force = name

    def _count(self, accepted: int, drafted: int) -> None:
        stats = self._stats
        for counts, number in ((stats.proposed, drafted), (stats.accepted, accepted)):
            counts += [0] * (number - len(counts))
            for place in range(number):
                counts[place] += 1
        stats.rounds += 1
