"""A replica's leader: brings its ranks together, loads its own share, and drives all of them through a Core."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch

from inference_core.core import Core
from inference_core.live_knobs import KnobsFile, LiveKnobs, start_knobs
from inference_core.loading import use_threads
from inference_core.parallel.connections import Connections, check_world, own_address
from inference_core.parallel.control import Followers
from inference_core.parallel.environment import RankEnvironment
from inference_core.parallel.mesh_runner import Leader, MeshRunner
from inference_core.parallel.mesh_spec import MeshSpec
from inference_core.parallel.rank_runner import RankRunner
from inference_core.parallel.share_loading import divide_models, load_shares, share_threads
from inference_core.runner import ModelRunner

SPEC_KEY = "spec"


def leader_key(replica: int) -> str:
    """Where in the store a replica's leader says how it is reached."""
    return f"leader/{replica}"


def publish(store: Any, spec: MeshSpec) -> None:
    """Tell every rank what is to be loaded, so that all of them agree by construction; rank 0 does."""
    store.set(SPEC_KEY, msgspec.json.encode(spec))


def no_look() -> None:
    """Nobody to look after: others start the ranks, and say when one has ended."""


class LedMesh:
    """A replica whose leader is this process. `core` is driven as any other; `close` when it is not needed any more.

    Raises MeshError, ModelFileError or MemoryPlanError for what cannot be loaded, before any rank is waited for, and
    RankLostError if a rank does not come or fails to load. `look` is called while ranks are awaited, to raise the
    same when one is known to have ended.
    """

    def __init__(
        self,
        environment: RankEnvironment,
        store: Any,
        spec: MeshSpec,
        cache_dir: Path,
        *,
        look: Callable[[], None] = no_look,
        knobs_file: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_world(environment, spec.mesh)
        models = divide_models(spec, cache_dir)
        self._followers = Followers(spec.mesh.followers(environment.rank), own_address(environment))
        try:
            store.set(leader_key(spec.mesh.position(environment.rank).replica), self._followers.address)
            self._followers.accept(spec.join_seconds, look)
            self._connections = Connections(environment, spec.mesh, store, torch.device("cpu"), spec.step_seconds)
        except BaseException:
            self._followers.close()
            raise
        try:
            shares = load_shares(spec, models, environment, store, self._connections.group, cache_dir)
            self._followers.wait_ready(spec.load_seconds)
        except BaseException:
            self._followers.close()
            self._connections.close()
            raise
        self.rank = RankRunner(
            environment.rank,
            spec.mesh,
            shares,
            self._connections.group,
            self._connections.links,
            max_micro_batches=spec.max_micro_batches,
            min_micro_batch_tokens=spec.min_micro_batch_tokens,
        )
        self.leader = Leader(self.rank, self._followers, self._connections.close)
        self.group = self._connections.group
        self.runners = {m.spec.name: MeshRunner(m.info, m.config, m.layout, self.leader) for m in models}
        runners: dict[str, ModelRunner] = dict(self.runners)
        threads = share_threads(spec, environment.local_world_size)
        self.core = Core(
            runners,
            arena_bytes=spec.core.arena_bytes,
            slab_bytes=spec.core.slab_bytes,
            knobs=LiveKnobs(start_knobs(spec.core), None if knobs_file is None else KnobsFile(knobs_file)),
            clock=clock,
            use_threads=lambda count: self.leader.use_threads(count or threads, use_threads),
        )

    def close(self) -> None:
        """End all ranks of the replica in good order; idempotent."""
        self.leader.stop()
        self._followers.close()
        self._connections.close()
