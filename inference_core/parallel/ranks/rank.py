"""One process of a mesh, leader or follower: its shards, its connections, and the runner built from both."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from inference_core.parallel.communication.connections import Connections, check_world
from inference_core.parallel.communication.device_wait import wait_for_device
from inference_core.parallel.communication.messages import RunStep
from inference_core.parallel.ranks.rank_runner import RankModel, RankRunner
from inference_core.parallel.shards.device_shard_loader import DeviceShardLoader
from inference_core.parallel.topology.environment import RankEnvironment
from inference_core.parallel.topology.mesh_spec import MeshSpec


class Rank:
    """The constructor divides the models. Then call `connect`, `load`, `arena_capacity` and `allocate_arena`, each on
    all ranks before the next on any.

    Raises what dividing raises (see `DeviceShardLoader`), before it waits for other ranks.
    """

    def __init__(self, environment: RankEnvironment, spec: MeshSpec, cache_dir: Path) -> None:
        check_world(environment, spec.mesh)
        self._environment = environment
        self._spec = spec
        self.loader = DeviceShardLoader(spec, environment, cache_dir)
        self.connections: Connections
        self.runner: RankRunner

    def connect(self, store: Any) -> None:
        """Join the other ranks' process groups."""
        spec = self._spec
        self.connections = Connections(self._environment, spec.mesh, store, self.loader.device, spec.step_seconds)

    def load(self, store: Any) -> dict[str, int]:
        """Read this rank's weights. Returns their bytes by model."""
        return self.loader.load(store, self.connections.group)

    def arena_capacity(self, check_ranks: Callable[[], None]) -> int:
        """Bytes left for keys and values during the largest step. `check_ranks`: see `wait_for_device`."""

        def profile_step(models: dict[str, RankModel], step: RunStep) -> None:
            self._runner(models).run(step)
            wait_for_device(self.loader.device, check_ranks, self._spec.load_seconds)

        return self.loader.arena_capacity(profile_step)

    def allocate_arena(self, arena_bytes: int) -> None:
        """Allocate the arena and build `runner`, which then executes commands."""
        self.runner = self._runner(self.loader.stages(arena_bytes))

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
