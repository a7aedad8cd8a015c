"""What a leader and the other ranks of its replica tell each other: plain msgspec structs."""

import msgspec

from inference_core.step_plan import ScheduledSequence


class RunStep(msgspec.Struct, frozen=True, tag="run", array_like=True):
    """Compute one StepPlan of `model`. `rows` count its tokens; their logits go to the leader, which alone samples."""

    model: str
    sequences: list[ScheduledSequence]
    rows: list[int]


class CopyBlocks(msgspec.Struct, frozen=True, tag="copy", array_like=True):
    """Copy whole KV blocks (from, to) of `model`."""

    model: str
    copies: list[tuple[int, int]]


class UseThreads(msgspec.Struct, frozen=True, tag="threads", array_like=True):
    """Give the kernels of each rank this many threads (0: its share of the CPUs)."""

    threads: int


class Stop(msgspec.Struct, frozen=True, tag="stop", array_like=True):
    """End the process in good order."""


Order = RunStep | CopyBlocks | UseThreads | Stop


class Joined(msgspec.Struct, frozen=True, tag="joined"):
    """A rank's first word to its leader; `token` proves that it was told where by the leader itself."""

    rank: int
    token: str


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The rank has loaded its share."""

    rank: int


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The rank ends, since `error` happened to it; as a `consequence` if it only lost another rank."""

    rank: int
    error: str
    consequence: bool = False


Report = Joined | Ready | Failed
