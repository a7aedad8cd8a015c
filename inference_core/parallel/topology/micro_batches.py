"""Splits a step into micro-batches, so that the stages of a pipeline compute at the same time. No torch."""

from inference_core.step_plan import ScheduledSequence


def micro_batch_count(tokens: int, stages: int, *, limit: int, min_tokens: int) -> int:
    """How many micro-batches a step of `tokens` is split into; 1 for a single stage.

    A micro-batch of few tokens takes as long as one of many, since it reads the same weights, so each has at least
    `min_tokens`.
    """
    return 1 if stages == 1 else max(1, min(limit, tokens // min_tokens))


def bubble(stages: int, micro_batches: int) -> float:
    """The idle share of the stages' time: (P - 1) / (M + P - 1) (Huang et al. 2019, SPEC PX-03)."""
    return (stages - 1) / (micro_batches + stages - 1)


def micro_batches(sequences: list[ScheduledSequence], count: int) -> list[list[ScheduledSequence]]:
    """Split the step's tokens into at most `count` consecutive micro-batches of nearly equal size, none empty.

    A sequence's chunk may be split: each stage computes the micro-batches in order, so the first part's keys and
    values are written before the second attends to them.
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
