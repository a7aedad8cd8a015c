"""The mesh of ranks, tensor parallel and pipeline stages, and what each rank of a model holds. No torch.

A process knows its rank from the environment variables that torchrun and our own launcher set. `MeshSpec` says what
to load: a core's specification and how its models are divided over ranks.

Linear layers are split as in Megatron-LM (Shoeybi et al. 2019): q, k, v, gate and up by their outputs (column
parallel), attention output and down by their inputs (row parallel), so that a layer needs two sums over the ranks
(SPEC PX-01). Embedding and head are split by vocabulary.
"""

import itertools
import os
from collections.abc import Mapping
from math import gcd, lcm
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from inference_core.errors import MeshError
from inference_core.model_config import ModelConfig
from inference_core.model_spec import DeviceCoreSpec

_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class RankEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """`rank` of `world_size`, `local_rank` of `local_world_size` on this machine; rank 0's machine is `master`."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    master: str
    port: int
    agent_store: bool = False
    """Whether torchrun runs the store at `master`, so that rank 0 must not."""
    attempt: int = 0
    """Number of torchrun's restarts."""

    @classmethod
    def read(cls, variables: Mapping[str, str] = os.environ) -> "RankEnvironment":
        """Raises MeshError naming the variables that are missing or not numbers."""
        missing = [name for name in _NAMES if name not in variables]
        if missing:
            raise MeshError(f"the environment lacks {', '.join(missing)}; start ranks with torchrun or our launcher")
        try:
            rank, world, local_rank, local_world = (int(variables[name]) for name in _NAMES[:4])
            port = int(variables["MASTER_PORT"])
            attempt = int(variables.get("TORCHELASTIC_RESTART_COUNT", "0"))
        except ValueError as error:
            raise MeshError(f"the environment's rank numbers cannot be read: {error}") from error
        return cls(
            rank=rank,
            world_size=world,
            local_rank=local_rank,
            local_world_size=local_world,
            master=variables["MASTER_ADDR"],
            port=port,
            agent_store=variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            attempt=attempt,
        )

    def variables(self) -> dict[str, str]:
        """The environment variables that `read` needs, for a process to be started."""
        values = (self.rank, self.world_size, self.local_rank, self.local_world_size, self.master, self.port)
        return dict(zip(_NAMES, map(str, values), strict=True))


# The rank that schedules, samples and sends commands to the others.
LEADER = 0


class Position(msgspec.Struct, frozen=True):
    """A rank's coordinates: its pipeline stage, and its index in the stage's tensor-parallel group."""

    stage: int
    shard: int


class Mesh(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ranks count tensor first, then pipeline, so ranks that communicate most have neighbouring numbers: if a machine's
    number of devices is a multiple of `tensor`, no tensor-parallel group spans machines (SPEC PX-04).
    """

    tensor: int = 1
    """Ranks that share every layer."""
    pipeline: int = 1
    """Stages, each with consecutive layers."""

    def __post_init__(self) -> None:
        for name in ("tensor", "pipeline"):
            if getattr(self, name) < 1:
                raise MeshError(f"{name} is {getattr(self, name)}; it must be at least 1")

    @property
    def size(self) -> int:
        return self.tensor * self.pipeline

    def position(self, rank: int) -> Position:
        """Raises MeshError for a rank that the mesh does not have."""
        if not 0 <= rank < self.size:
            raise MeshError(f"rank {rank} is outside of a mesh of {self.size} ranks")
        return Position(*divmod(rank, self.tensor))

    def rank(self, stage: int, shard: int) -> int:
        return stage * self.tensor + shard

    def tensor_group(self, rank: int) -> list[int]:
        """The ranks that hold the same layers, `rank` among them."""
        stage = self.position(rank).stage
        return [self.rank(stage, shard) for shard in range(self.tensor)]

    def tensor_groups(self) -> list[list[int]]:
        """Every group, in the order of its first rank."""
        return [self.tensor_group(first) for first in range(0, self.size, self.tensor)]

    def check_node(self, ranks_per_node: int) -> None:
        """Raises MeshError if a tensor-parallel group would span machines: every layer has two all-reduces over it."""
        if self.size > ranks_per_node and ranks_per_node % self.tensor:
            raise MeshError(
                f"{ranks_per_node} ranks per machine are not a multiple of {self.tensor} tensor-parallel ranks, so a "
                "group would span machines; make tensor a divisor, and let pipeline stages span machines"
            )


Seconds = Annotated[float, Meta(gt=0)]


class MeshSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mesh of ranks that compute with the kernels of `inference_core.device`, each on its own device.

    With "cuda", `core.capture_steps` captures a rank's all-reduces with its kernels. The arenas of all ranks are as
    large as the rank with the least memory allows (`core.memory_utilization`).
    """

    core: DeviceCoreSpec
    mesh: Mesh
    device: Literal["cuda", "cpu"]
    """"cuda", or "cpu" for the same through the kernels' references, slowly."""
    devices: list[int] | None = None
    """The CUDA devices of a machine, one per rank in order; None: 0, 1, 2 and so on."""
    host_bytes: Annotated[int, Meta(gt=0)] | None = None
    """With "cpu", how much host memory a rank may take, in place of a card's memory; None for its share of the free
    memory.
    """
    uneven_splits: bool = False
    """Allows heads, layers, inner columns and vocabularies that do not divide evenly."""
    max_micro_batches: Annotated[int, Meta(ge=1)] = 8
    """Most parts into which a step is cut for pipeline stages."""
    min_micro_batch_tokens: Annotated[int, Meta(ge=1)] = 64
    """Least tokens of such a part."""
    join_seconds: Seconds = 120.0
    """Timeout for ranks to join."""
    load_seconds: Seconds = 1800.0
    """Timeout for ranks to load their shards."""
    step_seconds: Seconds = 120.0
    """Timeout for one collective operation; after it, a rank counts as lost."""


class SplitUnits(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest units in which the file's row-parallel inputs can be split (SPEC PX-05)."""

    attention_output: int = 1
    down: int = 1


class HeadShare(msgspec.Struct, frozen=True):
    """A rank's query heads, and the KV heads that they read, in order; a KV head repeats where a group is split."""

    query: range
    kv_heads: tuple[int, ...]


class RankShare(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank holds. Only the first stage has the embedding, only the last one has final norm and head."""

    stage: int
    shard: int
    layers: range
    heads: HeadShare
    inner: range
    vocabulary: range
    first: bool
    last: bool

    def config(self, whole: ModelConfig) -> ModelConfig:
        """The settings of this rank's decoder: those of a smaller model of the same width, layers counted from 0."""
        windows = whole.attention.window_layers
        replace = msgspec.structs.replace
        return replace(
            whole,
            attention=replace(whole.attention, window_layers=None if windows is None else self._own(windows)),
            rope=replace(whole.rope, skipped_layers=self._own(whole.rope.skipped_layers)),
            num_layers=len(self.layers),
            num_heads=len(self.heads.query),
            num_kv_heads=len(self.heads.kv_heads),
            intermediate_size=len(self.inner),
            vocab_size=len(self.vocabulary),
        )

    def _own(self, layers: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(layer - self.layers.start for layer in layers if layer in self.layers)


def divide(
    config: ModelConfig, mesh: Mesh, units: SplitUnits | None = None, *, uneven: bool = False
) -> list[RankShare]:
    """Return the shares of all ranks, in rank order.

    Raises MeshError, with the reason, for indivisible sizes; with `uneven`, shares may differ by one unit.
    """
    units = units or SplitUnits()
    stages = split(config.num_layers, mesh.pipeline, "layers", uneven=uneven)
    # The attention output is split between heads, and between scale groups if these span several heads.
    unit_heads = lcm(units.attention_output, config.head_dim) // config.head_dim
    heads = split_heads(config.num_heads, config.num_kv_heads, mesh.tensor, unit=unit_heads, uneven=uneven)
    # Kernels take inputs in pairs at least.
    inner = split(config.intermediate_size, mesh.tensor, "inner columns", unit=lcm(units.down, 2), uneven=uneven)
    vocabulary = split(config.vocab_size, mesh.tensor, "vocabulary rows", uneven=uneven)
    return [
        RankShare(
            stage=stage,
            shard=shard,
            layers=layers,
            heads=heads[shard],
            inner=inner[shard],
            vocabulary=vocabulary[shard],
            first=stage == 0,
            last=stage == mesh.pipeline - 1,
        )
        for stage, layers in enumerate(stages)
        for shard in range(mesh.tensor)
    ]


def split(total: int, parts: int, what: str, *, unit: int = 1, uneven: bool = False) -> list[range]:
    """Split `total` into consecutive spans of whole units, the first ones larger if they cannot be equal.

    Raises MeshError if spans would be empty, or unequal without `uneven`.
    """
    units, rest = divmod(total, unit)
    in_units = f"{total} {what}" + (f" in units of {unit}" if unit > 1 else "")
    if rest and parts > 1:
        raise MeshError(f"{in_units} leave {rest} over; they cannot be split")
    if parts > max(units, 1):
        raise MeshError(f"{in_units} cannot give each of {parts} ranks a part; use at most {max(units, 1)} ranks")
    if units % parts and not uneven:
        allowed = ", ".join(str(n) for n in range(1, min(units, 64) + 1) if units % n == 0)
        raise MeshError(
            f"{in_units} cannot be split over {parts} ranks evenly; use one of {allowed} ranks, or allow uneven splits"
        )
    small, larger = divmod(units, parts)
    borders = [0]
    for part in range(parts):
        borders.append(borders[-1] + (small + (part < larger)) * unit)
    borders[-1] = total
    return [range(begin, end) for begin, end in itertools.pairwise(borders)]


def split_heads(
    num_heads: int, num_kv_heads: int, parts: int, *, unit: int = 1, uneven: bool = False
) -> list[HeadShare]:
    """Split query heads over the ranks, with the KV heads that each rank needs (SPEC PX-02).

    KV heads are split if their number is a multiple of the ranks, and replicated if the ranks are a multiple of it.
    With `uneven` a rank's queries may start or end inside a group; its KV heads are then repeated, at worst once per
    query head, so that all of them serve equally many queries, as attention backends require.
    """
    spans = split(num_heads, parts, "query heads", unit=unit, uneven=uneven)
    if num_kv_heads % parts and parts % num_kv_heads and not uneven:
        raise MeshError(
            f"{num_kv_heads} KV heads can neither be split over {parts} ranks evenly nor be replicated on them; "
            "use a divisor or a multiple as the number of ranks, or allow uneven splits"
        )
    return [HeadShare(span, _kv_heads(span, num_heads // num_kv_heads)) for span in spans]


def _kv_heads(query: range, group: int) -> tuple[int, ...]:
    """The KV heads of query heads `query`; in the whole model, `group` query heads share one."""
    pieces = [
        (head, min(query.stop, (head + 1) * group) - max(query.start, head * group))
        for head in range(query.start // group, -(-query.stop // group))
    ]
    served = gcd(*(size for _, size in pieces))
    return tuple(head for head, size in pieces for _ in range(size // served))
