"""One process of a mesh, leader or not: its shares, its connections, and from the two the runner of orders."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from inference_core.parallel.communication.connections import Connections, check_world
from inference_core.parallel.communication.device_wait import settle
from inference_core.parallel.communication.messages import RunStep
from inference_core.parallel.ranks.rank_runner import RankModel, RankRunner
from inference_core.parallel.shards.cpu_shards import CpuShares
from inference_core.parallel.shards.device_shards import DeviceShares
from inference_core.parallel.shards.rank_shards import RankShares
from inference_core.parallel.topology.environment import RankEnvironment
from inference_core.parallel.topology.mesh_spec import AnyMeshSpec, DeviceMeshSpec


class Rank:
    """Models are divided when it is made; `connect`, `load`, `room` and `take_arena` follow, each on all ranks before
    the next on any. Raises what dividing raises (see `CpuShares`, `DeviceShares`), before anybody is waited for."""

    def __init__(self, environment: RankEnvironment, spec: AnyMeshSpec, cache_dir: Path) -> None:
        check_world(environment, spec.mesh)
        self._environment = environment
        self._spec = spec
        self.shares: RankShares
        if isinstance(spec, DeviceMeshSpec):
            self.shares = DeviceShares(spec, environment, cache_dir)
        else:
            self.shares = CpuShares(spec, environment, cache_dir)
        self.connections: Connections
        self.runner: RankRunner

    def connect(self, store: Any) -> None:
        """Join the other ranks' process groups."""
        spec = self._spec
        self.connections = Connections(self._environment, spec.mesh, store, self.shares.device, spec.step_seconds)

    def load(self, store: Any) -> dict[str, int]:
        """Read this rank's weights; their bytes by model."""
        return self.shares.load(store, self.connections.group)

    def room(self, look: Callable[[], None]) -> int:
        """Bytes for keys and values beside the largest step. `look`: see `settle`."""

        def rehearse(models: dict[str, RankModel], step: RunStep) -> None:
            self._runner(models).run(step)
            settle(self.shares.device, look, self._spec.load_seconds)

        return self.shares.room(rehearse)

    def take_arena(self, arena_bytes: int) -> None:
        """From here on `runner` executes orders."""
        self.runner = self._runner(self.shares.stages(arena_bytes))

    def _runner(self, models: dict[str, RankModel]) -> RankRunner:
        return RankRunner(
            self._environment.rank,
            self._spec.mesh,
            models,
            self.connections.group,
            self.connections.links,
            max_micro_batches=self._spec.max_micro_batches,
            min_micro_batch_tokens=self._spec.min_micro_batch_tokens,
        )
