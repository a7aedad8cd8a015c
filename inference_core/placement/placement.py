"""A placement: how a model is divided over devices, with every decision and its rule."""

from typing import Literal

import msgspec

from inference_core.errors import MemoryPlanError
from inference_core.parallel.topology.mesh import Mesh
from inference_core.placement.rank_memory import RankMemory

Rule = Literal[
    "executable",
    "unsupported",
    "weight-format",
    "tensor-cores",
    "power-limit",
    "over-30b",
    "asked-for",
    "one-device",
    "tensor-parallel-within-a-node",
    "link-too-slow-for-tensor-parallel",
    "pipeline-across-islands",
    "kv-heads",
    "replicas",
    "offload",
    "does-not-fit",
]


class Decision(msgspec.Struct, frozen=True):
    """A rule that fired, and its consequence."""

    rule: Rule
    text: str


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """`mesh` and `ranks`: of one of `replicas` whole copies. `max_sequences`: concurrent sequences of the planned
    length per replica.

    `executable`: whether AIO runs models on this kind of device, or only plans for it.
    """

    device: str
    executable: bool
    format: str
    mesh: Mesh
    replicas: int
    decisions: tuple[Decision, ...]
    ranks: tuple[RankMemory, ...]
    kv_tokens: int
    max_sequences: int
    lines: tuple[str, ...]


class PlacementError(MemoryPlanError):
    """There is no placement: the message has the rule, the arithmetic, and a remedy. Change model or devices."""

    def __init__(self, decisions: list[Decision], lines: list[str] | None = None) -> None:
        last = decisions[-1]
        super().__init__("\n".join([f"{last.rule}: {last.text}", *(lines or [])]))
        self.decisions = tuple(decisions)

    @property
    def rule(self) -> Rule:
        return self.decisions[-1].rule
