"""Block tables on their way to the ranks of a mesh: a step carries only the entries that they have not heard yet."""

from typing import Any

from inference_core.errors import RankLostError
from inference_core.parallel.communication.messages import RunStep, SequenceShare, StepCommand
from inference_core.step_plan import ScheduledSequence

# Sequences whose tables both ends remember; who was in no step for longest is forgotten first, on both alike.
_MOST = 4096


class SentTables:
    """The leader's end for one model: what the others know of each sequence's table, a list that only grows."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[list[int], int]] = {}

    def command(self, step: RunStep) -> StepCommand:
        """`step` for ranks that have been given every order so far."""
        shares = [self._share(sequence) for sequence in step.sequences]
        _forget_oldest(self._known)
        return StepCommand(step.model, shares, step.rows)

    def forget(self) -> None:
        """Lists were changed in the middle, or an order has not arrived: every table travels again."""
        self._known.clear()

    def _share(self, sequence: ScheduledSequence) -> SequenceShare:
        table = sequence.block_table
        of, known = self._known.pop(sequence.sequence_id, (table, 0))
        if of is not table or known > len(table):
            known = 0
        self._known[sequence.sequence_id] = (table, len(table))
        return SequenceShare(
            sequence.sequence_id, sequence.token_ids, sequence.start, known, table[known:], sequence.adapter
        )


class ReceivedTables:
    """The other end: keeps the tables, each one list for as long as it only grows."""

    def __init__(self) -> None:
        self._tables: dict[str, list[int]] = {}

    def step(self, command: StepCommand) -> RunStep:
        sequences = [
            ScheduledSequence(
                share.sequence_id, share.token_ids, share.start, self._table(share), None, adapter=share.adapter
            )
            for share in command.sequences
        ]
        _forget_oldest(self._tables)
        return RunStep(command.model, sequences, command.rows)

    def _table(self, share: SequenceShare) -> list[int]:
        table = self._tables.pop(share.sequence_id, [])
        if not share.known:
            table = []
        if len(table) != share.known:
            raise RankLostError(
                f"{len(table)} blocks of {share.sequence_id} are known here, {share.known} to the leader"
            )
        table += share.blocks
        self._tables[share.sequence_id] = table
        return table


def _forget_oldest(by_use: dict[str, Any]) -> None:
    while len(by_use) > _MOST:
        del by_use[next(iter(by_use))]
