"""What a sequence can count on from a step: the state in which the step will leave it."""

from typing import NamedTuple

from inference_core.sequence import Sequence
from inference_core.step_plan import StepPlan


class Passenger(NamedTuple):
    """`sequence` has `computed` tokens once the step is done and, if `sampled`, one token more.

    `admissions`: how often it had been admitted; with one more, its blocks are others than the step wrote to.
    """

    sequence: Sequence
    computed: int
    sampled: bool
    admissions: int


def seat(plan: StepPlan, running: dict[str, Sequence]) -> list[Passenger]:
    """The sequences of a plan that has not been carried out yet, in its order."""
    return [
        Passenger(sequence, share.start + len(share.token_ids), share.sample is not None, sequence.admissions)
        for share in plan.sequences
        for sequence in (running[share.sequence_id],)
    ]
