"""The token budget of the step being planned, and a scheduler's totals since start."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from inference_core.scheduling.sequence import Sequence
from inference_core.step_plan import ScheduledSequence

# Each scored row takes a row of logits as wide as the vocabulary; prompts are rarely scored, so the limit is low.
MAX_SCORED_ROWS = 128


@dataclass(slots=True)
class SchedulerTotals:
    """Counts since start.

    Prompts count once per request, prefix look-ups once per choice, generated tokens as drawn, stop tokens too.
    """

    prompt_tokens: int = 0
    generated_tokens: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    preemptions: int = 0
    deadline_refusals: int = 0
    repetitions_ended: int = 0


@dataclass(slots=True)
class StepBudget:
    """The token budget of the step being planned: `left` of `total` tokens are not assigned yet.

    `memory_short`: a running sequence was preempted for memory, so no sequence is admitted in this step.
    `queue_blocked`: the head of the queue could not be admitted, so none behind it is (no overtaking).
    `scores_left`: prompt rows that may still be scored in this step.
    `reclaimed`: the memory lent to drafters was taken back in this step.
    `kv_seconds`: what looking up and allocating blocks took, for each sequence that has its first token still to come.
    """

    total: int
    left: int = field(init=False)
    shares: dict[Sequence, ScheduledSequence] = field(default_factory=dict)
    preempted: set[Sequence] = field(default_factory=set)
    kv_seconds: dict[Sequence, float] = field(default_factory=dict)
    memory_short: bool = False
    queue_blocked: bool = False
    reclaimed: bool = False
    scores_left: int = MAX_SCORED_ROWS

    def __post_init__(self) -> None:
        self.left = self.total

    def room_for(self, sequence: Sequence) -> int:
        """The most tokens that `sequence` may compute in this step."""
        return min(self.left, self.scores_left) if sequence.scores_prompt else self.left

    def hand_out(self, sequence: Sequence, tokens: int) -> None:
        """Assign the next `tokens` tokens of `sequence` to this step."""
        start = sequence.num_computed_tokens
        share = sequence.share
        share.start = start
        share.token_ids = sequence.token_ids[start : start + tokens]
        ends = start + tokens == len(sequence.token_ids) and sequence.draws
        share.sample = sequence.sample_spec if ends else None
        share.state = sequence.state_spec(start, tokens)
        share.score = sequence.score_spec(start, tokens)
        if share.score is not None:
            self.scores_left -= len(share.score.token_ids)
        share.num_drafts = 0
        sequence.sample_spec.position = len(sequence.output_token_ids)
        self.shares[sequence] = share
        self.left -= tokens

    def hand_out_decodes(self, sequences: Iterable[Sequence]) -> None:
        """`hand_out` one token to each of these decoding sequences, none of which has a share yet."""
        shares = self.shares
        before = len(shares)
        for sequence in sequences:
            share = sequence.share
            share.start = sequence.num_computed_tokens
            share.token_ids = sequence.token_ids[-1:]
            spec = sequence.sample_spec
            spec.position = len(sequence.output_token_ids)
            share.sample = spec
            share.num_drafts = 0
            shares[sequence] = share
        self.left -= len(shares) - before

    def take_back(self, sequence: Sequence) -> None:
        """Return the share of a preempted sequence to the budget."""
        share = self.shares.pop(sequence, None)
        if share is not None:
            self.left += len(share.token_ids)
            if share.score is not None:
                self.scores_left += len(share.score.token_ids)
        self.kv_seconds.pop(sequence, None)
        self.preempted.add(sequence)

    def charge_planning(self, seconds: float) -> None:
        """Charge a planning of so many seconds to the sequences that wait for their first token."""
        for sequence, kv_seconds in self.kv_seconds.items():
            sequence.charge_planning(seconds - kv_seconds, kv_seconds)
