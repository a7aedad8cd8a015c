"""Who this process is among the ranks: the environment variables that torchrun sets, and our own launcher as well."""

import os
from collections.abc import Mapping

import msgspec

from inference_core.errors import MeshError

_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class RankEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """`rank` of `world_size`, `local_rank` of `local_world_size` on this machine; rank 0's machine is `master`.

    `agent_store`: torchrun keeps the store at `master` itself, so that rank 0 must not. `attempt` counts its restarts.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    master: str
    port: int
    agent_store: bool = False
    attempt: int = 0

    @classmethod
    def read(cls, variables: Mapping[str, str] = os.environ) -> "RankEnvironment":
        """Raises MeshError naming the variables that are missing or no numbers."""
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
        """What `read` understands, for a process to be started."""
        values = (self.rank, self.world_size, self.local_rank, self.local_world_size, self.master, self.port)
        return dict(zip(_NAMES, map(str, values), strict=True))
