"""Messages between a leader and the other ranks: commands and reports, as msgspec structs.

Block tables are sent incrementally: a step carries only the entries that a rank does not have.
"""

from typing import Any

import msgspec

from inference_core.errors import RankLostError
from inference_core.step_plan import ScheduledSequence


class RunStep(msgspec.Struct, frozen=True):
    """One StepPlan of `model`, computed by every rank."""

    model: str
    sequences: list[ScheduledSequence]
    rows: list[int]
    """Indices among its tokens whose logits go to the leader, which alone samples."""


class SequenceShare(msgspec.Struct, frozen=True, array_like=True):
    """A `ScheduledSequence` without the first `known` block-table entries, which the rank has."""

    sequence_id: str
    token_ids: list[int]
    start: int
    known: int
    blocks: list[int]
    """The rest of the block table."""
    adapter: int = -1
    """The slot of its adapter, -1 for none."""


class StepCommand(msgspec.Struct, frozen=True, tag="run", array_like=True):
    """Compute a `RunStep`."""

    model: str
    sequences: list[SequenceShare]
    rows: list[int]


class CopyBlocks(msgspec.Struct, frozen=True, tag="copy", array_like=True):
    """Copy whole KV blocks (from, to) of `model`."""

    model: str
    copies: list[tuple[int, int]]


class ProfileMemory(msgspec.Struct, frozen=True, tag="rehearse", array_like=True):
    """Compute the largest step on all ranks and report how much memory it leaves. Sent when all weights are loaded."""


class AllocateArena(msgspec.Struct, frozen=True, tag="arena", array_like=True):
    """Allocate a KV arena of `arena_bytes`, which fits on all ranks."""

    arena_bytes: int


class OffloadBlocks(msgspec.Struct, frozen=True, tag="offload", array_like=True):
    """Copy whole KV blocks of `model` to each rank's own host slots (block, slot)."""

    model: str
    offloads: list[tuple[int, int]]


class RestoreBlocks(msgspec.Struct, frozen=True, tag="restore", array_like=True):
    """Copy host slots to whole KV blocks of `model` (slot, block)."""

    model: str
    restores: list[tuple[int, int]]


class UseThreads(msgspec.Struct, frozen=True, tag="threads", array_like=True):
    """Give the kernels of each rank this many threads (0: its share of the CPUs)."""

    threads: int


class ReadAdapter(msgspec.Struct, frozen=True, tag="read_adapter", array_like=True):
    """Read this rank's part of the PEFT folder `folder`, whose content has `digest`, as adapter `number` of `model`;
    answered by `AdapterRead`."""

    model: str
    number: int
    folder: str
    digest: bytes


class InstallAdapter(msgspec.Struct, frozen=True, tag="install_adapter", array_like=True):
    """Use adapter `number` for sequences that name `slot`."""

    model: str
    slot: int
    number: int


class ClearSlot(msgspec.Struct, frozen=True, tag="clear_slot", array_like=True):
    """Free `slot`; no sequence names it until an adapter is installed there again."""

    model: str
    slot: int


class ForgetAdapter(msgspec.Struct, frozen=True, tag="forget_adapter", array_like=True):
    """Drop adapter `number` on the ranks that have read it."""

    model: str
    number: int


class Stop(msgspec.Struct, frozen=True, tag="stop", array_like=True):
    """Close the connections and end the process."""


AdapterCommand = ReadAdapter | InstallAdapter | ClearSlot | ForgetAdapter
ModelCommand = CopyBlocks | OffloadBlocks | RestoreBlocks | AdapterCommand
"""What every rank does to its part of `model`, between two steps."""
Command = StepCommand | ModelCommand | ProfileMemory | AllocateArena | UseThreads | Stop


class Joined(msgspec.Struct, frozen=True, tag="joined"):
    """A rank's first message to its leader."""

    rank: int
    token: str
    """Proves that the rank has the leader's address from the store."""


class Divided(msgspec.Struct, frozen=True, tag="divided"):
    """The rank has found the files and its device, and joins the process groups next."""

    rank: int


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The rank has loaded its shard."""

    rank: int
    weight_bytes: dict[str, int] = {}
    """Bytes of weights by model."""


class ArenaCapacity(msgspec.Struct, frozen=True, tag="room"):
    """The rank has room for a KV arena of `arena_bytes`."""

    rank: int
    arena_bytes: int


class AdapterRead(msgspec.Struct, frozen=True, tag="adapter_read"):
    """The rank has read its part of an adapter, or `error` says why not."""

    rank: int
    error: str | None = None


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The rank ends because of `error`."""

    rank: int
    error: str
    consequence: bool = False
    """Whether it ends only because it lost another rank."""


Report = Joined | Divided | Ready | ArenaCapacity | AdapterRead | Failed


# How many sequences' tables both ends keep. Both evict the least recently scheduled sequence first.
_MOST = 4096


class SentTables:
    """The leader's end for one model: how much of each sequence's table, which only grows, the other ranks have."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[list[int], int]] = {}

    def command(self, step: RunStep) -> StepCommand:
        """Return `step` as a command for ranks that have received every command so far."""
        shares = [self._share(sequence) for sequence in step.sequences]
        _forget_oldest(self._known)
        return StepCommand(step.model, shares, step.rows)

    def forget(self) -> None:
        """Send every table in full again: tables were changed in the middle, or a command may not have arrived."""
        self._known.clear()

    def _share(self, sequence: ScheduledSequence) -> SequenceShare:
        table = sequence.block_table
        of, num_sent = self._known.pop(sequence.sequence_id, (table, 0))
        if of is not table or num_sent > len(table):
            num_sent = 0
        self._known[sequence.sequence_id] = (table, len(table))
        return SequenceShare(
            sequence.sequence_id, sequence.token_ids, sequence.start, num_sent, table[num_sent:], sequence.adapter
        )


class ReceivedTables:
    """A follower's end: keeps the tables, each as one list that is extended in place."""

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
