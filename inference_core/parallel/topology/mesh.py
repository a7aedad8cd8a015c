"""The mesh of ranks: who shares layers (tensor), who follows whom (pipeline), who is a copy (replica). No torch."""

import msgspec

from inference_core.errors import MeshError


class Position(msgspec.Struct, frozen=True):
    """Where a rank stands: its copy of the model, the pipeline stage therein, and its place in the stage's group."""

    replica: int
    stage: int
    shard: int


class Mesh(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`tensor` ranks share every layer, `pipeline` stages hold consecutive layers, `replicas` are whole copies.

    Ranks are counted tensor first, then pipeline, then replicas, so that those who talk most are neighbours: on
    machines whose number of devices is a multiple of `tensor`, no tensor-parallel group spans two (SPEC PX-04).
    """

    tensor: int = 1
    pipeline: int = 1
    replicas: int = 1

    def __post_init__(self) -> None:
        for name in ("tensor", "pipeline", "replicas"):
            if getattr(self, name) < 1:
                raise MeshError(f"{name} is {getattr(self, name)}; it must be at least 1")

    @property
    def replica_size(self) -> int:
        """Ranks of one copy of the model."""
        return self.tensor * self.pipeline

    @property
    def size(self) -> int:
        return self.replica_size * self.replicas

    def position(self, rank: int) -> Position:
        """Raises MeshError for a rank that the mesh does not have."""
        if not 0 <= rank < self.size:
            raise MeshError(f"rank {rank} is outside of a mesh of {self.size} ranks")
        replica, inside = divmod(rank, self.replica_size)
        return Position(replica, *divmod(inside, self.tensor))

    def rank(self, replica: int, stage: int, shard: int) -> int:
        return (replica * self.pipeline + stage) * self.tensor + shard

    def leader(self, rank: int) -> int:
        """The rank that schedules for `rank`: the first of its replica."""
        return self.rank(self.position(rank).replica, 0, 0)

    def tensor_group(self, rank: int) -> list[int]:
        """The ranks that hold the same layers of the same copy, `rank` among them."""
        at = self.position(rank)
        return [self.rank(at.replica, at.stage, shard) for shard in range(self.tensor)]

    def tensor_groups(self) -> list[list[int]]:
        """Every group, in the order of its first rank."""
        return [self.tensor_group(first) for first in range(0, self.size, self.tensor)]

    def followers(self, leader: int) -> list[int]:
        """The other ranks of the leader's replica."""
        return list(range(leader + 1, leader + self.replica_size))

    def check_node(self, ranks_per_node: int) -> None:
        """Raises MeshError if a tensor-parallel group would span two machines: layers meet twice over its links."""
        if self.size > ranks_per_node and ranks_per_node % self.tensor:
            raise MeshError(
                f"{ranks_per_node} ranks per machine are no multiple of {self.tensor} tensor-parallel ranks, so a "
                "group would span machines; make tensor a divisor, and let pipeline stages span machines"
            )
