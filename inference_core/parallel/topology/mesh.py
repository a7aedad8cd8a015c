"""The mesh of ranks in two dimensions: tensor parallel, pipeline stages. No torch."""

import msgspec

from inference_core.errors import MeshError

# The rank that schedules, samples and sends commands to the others.
LEADER = 0


class Position(msgspec.Struct, frozen=True):
    """A rank's coordinates: its pipeline stage, and its index in the stage's tensor-parallel group."""

    stage: int
    shard: int


class Mesh(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`tensor` ranks share every layer, `pipeline` stages hold consecutive layers.

    Ranks count tensor first, then pipeline, so ranks that communicate most have neighbouring numbers: if a machine's
    number of devices is a multiple of `tensor`, no tensor-parallel group spans machines (SPEC PX-04).
    """

    tensor: int = 1
    pipeline: int = 1

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
