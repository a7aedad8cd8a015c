"""What a scheduler keeps count of: the tokens of the step being put together, and totals since start."""

from dataclasses import dataclass, field

from inference_core.sequence import Sequence


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


@dataclass(slots=True)
class StepDraft:
    """A step being put together: `left` of `budget` tokens are still to hand out.

    `short` is set once a running sequence had to give way for memory: then nobody is admitted in this step.
    """

    budget: int
    left: int
    shares: dict[Sequence, int] = field(default_factory=dict)
    preempted: set[Sequence] = field(default_factory=set)
    short: bool = False

    def hand_out(self, sequence: Sequence, tokens: int) -> None:
        self.shares[sequence] = tokens
        self.left -= tokens

    def take_back(self, sequence: Sequence) -> None:
        """`sequence` was preempted: its share, if it had one, is for others."""
        self.left += self.shares.pop(sequence, 0)
        self.preempted.add(sequence)
