"""Cutting a step into micro-batches, so that the stages of a pipeline compute at the same time. No torch."""

import msgspec

from inference_core.step_plan import ScheduledSequence


def micro_batch_count(tokens: int, stages: int, *, limit: int, min_tokens: int) -> int:
    """How many micro-batches a step of `tokens` is cut into.

    One stage needs none. A micro-batch of few tokens takes a stage as long as one of many, since it reads the same
    weights, so that each is to have at least `min_tokens`.
    """
    return 1 if stages == 1 else max(1, min(limit, tokens // min_tokens))


def bubble(stages: int, micro_batches: int) -> float:
    """Share of the stages' time in which they have nothing to do: (P - 1) / (M + P - 1) (Huang et al. 2019, PX-03)."""
    return (stages - 1) / (micro_batches + stages - 1)


def micro_batches(sequences: list[ScheduledSequence], count: int) -> list[list[ScheduledSequence]]:
    """The step's tokens in at most `count` consecutive pieces of nearly equal size, none empty.

    A chunk may be cut: each stage computes the pieces in order, so the first one's keys and values are there when the
    second attends to them.
    """
    tokens = sum(len(s.token_ids) for s in sequences)
    count = min(count, tokens)
    small, larger = divmod(tokens, count)
    sizes = iter([small + 1] * larger + [small] * (count - larger))
    pieces: list[list[ScheduledSequence]] = [[]]
    room = next(sizes)
    for sequence in sequences:
        taken = 0
        while taken < len(sequence.token_ids):
            if room == 0:
                pieces.append([])
                room = next(sizes)
            part = sequence.token_ids[taken : taken + room]
            start = sequence.start + taken
            pieces[-1].append(
                ScheduledSequence(
                    sequence.sequence_id, part, start, sequence.block_table, None, adapter=sequence.adapter
                )
            )
            taken += len(part)
            room -= len(part)
    return pieces


class PipelineReport(msgspec.Struct, kw_only=True):
    """What the pipeline has done so far, for operators: steps, micro-batches of all steps, and the idle share."""

    stages: int
    steps: int = 0
    micro_batches: int = 0
    bubble_sum: float = 0.0

    def record(self, micro_batches: int) -> None:
        self.steps += 1
        self.micro_batches += micro_batches
        self.bubble_sum += bubble(self.stages, micro_batches)

    @property
    def mean_bubble(self) -> float:
        """Mean of (P - 1) / (M + P - 1) over the steps."""
        return self.bubble_sum / self.steps if self.steps else 0.0
