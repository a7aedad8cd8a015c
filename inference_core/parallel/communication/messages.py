"""What a leader and the other ranks of its replica tell each other: plain msgspec structs."""

import msgspec

from inference_core.step_plan import ScheduledSequence


class RunStep(msgspec.Struct, frozen=True):
    """One StepPlan of `model` as every rank computes it. `rows` count its tokens; their logits go to the leader, which
    alone samples."""

    model: str
    sequences: list[ScheduledSequence]
    rows: list[int]


class SequenceShare(msgspec.Struct, frozen=True, array_like=True):
    """A `ScheduledSequence` of which the rank knows the first `known` entries of the block table; `blocks` follow.
    `adapter`: the slot of its adapter, -1 for none."""

    sequence_id: str
    token_ids: list[int]
    start: int
    known: int
    blocks: list[int]
    adapter: int = -1


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
    """All weights are loaded: compute the largest step, together, and report how much room it leaves."""


class AllocateArena(msgspec.Struct, frozen=True, tag="arena", array_like=True):
    """All ranks have room for this: keep keys and values in an arena of `arena_bytes`."""

    arena_bytes: int


class OffloadBlocks(msgspec.Struct, frozen=True, tag="offload", array_like=True):
    """Copy whole KV blocks of `model` to host slots (block, slot), on every rank to its own."""

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
    """Compute with adapter `number` where sequences name `slot`."""

    model: str
    slot: int
    number: int


class ClearSlot(msgspec.Struct, frozen=True, tag="clear_slot", array_like=True):
    """No sequence names `slot` until an adapter is installed there again."""

    model: str
    slot: int


class ForgetAdapter(msgspec.Struct, frozen=True, tag="forget_adapter", array_like=True):
    """Drop adapter `number`, where it was read."""

    model: str
    number: int


class Stop(msgspec.Struct, frozen=True, tag="stop", array_like=True):
    """End the process in good order."""


AdapterCommand = ReadAdapter | InstallAdapter | ClearSlot | ForgetAdapter
Command = (
    StepCommand
    | CopyBlocks
    | OffloadBlocks
    | RestoreBlocks
    | AdapterCommand
    | ProfileMemory
    | AllocateArena
    | UseThreads
    | Stop
)


class Joined(msgspec.Struct, frozen=True, tag="joined"):
    """A rank's first word to its leader; `token` proves that it was told where by the leader itself."""

    rank: int
    token: str


class Divided(msgspec.Struct, frozen=True, tag="divided"):
    """The rank has found the files and its device, and will meet the others."""

    rank: int


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The rank has loaded its share: so many bytes of weights by model."""

    rank: int
    weight_bytes: dict[str, int] = {}


class ArenaCapacity(msgspec.Struct, frozen=True, tag="room"):
    """The rank has `arena_bytes` for keys and values."""

    rank: int
    arena_bytes: int


class AdapterRead(msgspec.Struct, frozen=True, tag="adapter_read"):
    """The rank has read its part of an adapter, or `error` says why not."""

    rank: int
    error: str | None = None


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The rank ends, since `error` happened to it; as a `consequence` if it only lost another rank."""

    rank: int
    error: str
    consequence: bool = False


Report = Joined | Divided | Ready | ArenaCapacity | AdapterRead | Failed
