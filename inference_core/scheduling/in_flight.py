"""What a sequence can count on from a step: the state in which the step will leave it."""

from typing import TypeAlias

from inference_core.scheduling.sequence import Sequence
from inference_core.step_plan import StepPlan

# A sequence; how many tokens of it are computed once the step is done, whatever becomes of drafts; whether the step
# draws one token more; and how often the sequence had been admitted: with one more, its blocks are others than the step
# wrote to. A plain tuple, because there is one per sequence and step.
ScheduledEntry: TypeAlias = tuple[Sequence, int, bool, int]


def entries_of(plan: StepPlan, running: dict[str, Sequence]) -> list[ScheduledEntry]:
    """The sequences of a plan that has not been carried out yet, in its order."""
    return [
        (sequence, share.start + len(share.token_ids) - share.num_drafts, share.sample is not None, sequence.admissions)
        for share in plan.sequences
        for sequence in (running[share.sequence_id],)
    ]
