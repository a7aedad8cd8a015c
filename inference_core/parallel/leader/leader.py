"""A replica's leader: brings its ranks together, loads its own share, and drives all of them through a Core."""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from inference_core.core import Core
from inference_core.errors import RankLostError
from inference_core.execution.runner import ModelRunner
from inference_core.kv_cache.memory_plan import format_bytes
from inference_core.loading.load_adapters import load_adapters
from inference_core.parallel.communication.connections import own_address
from inference_core.parallel.communication.control import Followers
from inference_core.parallel.communication.messages import Rehearse, TakeArena
from inference_core.parallel.leader.mesh_runner import Leader, MeshRunner
from inference_core.parallel.ranks.rank import Rank
from inference_core.parallel.topology.environment import RankEnvironment
from inference_core.parallel.topology.mesh_spec import AnyMeshSpec
from inference_core.speculation.pairing import paired_drafts

SPEC_KEY = "spec"
logger = logging.getLogger(__name__)


def leader_key(replica: int) -> str:
    """Where in the store a replica's leader says how it is reached."""
    return f"leader/{replica}"


def publish(store: Any, spec: AnyMeshSpec) -> None:
    """Tell every rank what is to be loaded, so that all of them agree by construction; rank 0 does."""
    store.set(SPEC_KEY, msgspec.json.encode(spec))


def no_look() -> None:
    """Nobody to look after: others start the ranks, and say when one has ended."""


class LedMesh:
    """A replica whose leader is this process. `core` is driven as any other; `close` when it is not needed any more.

    Raises MeshError, ModelFileError or MemoryPlanError for what cannot be loaded, adapters aside before any rank is
    waited for, and
    RankLostError if a rank does not come or fails to load. `look` is called while ranks are awaited, to raise the
    same when one is known to have ended.
    """

    def __init__(
        self,
        environment: RankEnvironment,
        store: Any,
        spec: AnyMeshSpec,
        cache_dir: Path,
        *,
        look: Callable[[], None] = no_look,
        knobs_file: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        drafts = paired_drafts(spec.core.models)
        rank = Rank(environment, spec, cache_dir)
        knobs = rank.shares.knobs(knobs_file)
        self._followers = Followers(spec.mesh.followers(environment.rank), own_address(environment))
        try:
            store.set(leader_key(spec.mesh.position(environment.rank).replica), self._followers.address)
            self._followers.accept(spec.join_seconds, look)
            self._followers.wait_divided(spec.join_seconds)
            rank.connect(store)
        except BaseException:
            self._followers.close()
            raise
        self._connections = rank.connections
        try:
            weight_bytes = self._load(rank, store, spec.load_seconds)
            arena_bytes = self._take_arena(rank, spec.load_seconds)
        except BaseException:
            self._followers.close()
            self._connections.abandon()
            raise
        self.rank = rank.runner
        self.leader = Leader(rank, self._followers, spec.step_seconds)
        self.group = self._connections.group
        self.runners = {
            m.spec.name: MeshRunner(
                m.info(weight_bytes[m.spec.name]),
                m.config,
                m.layout,
                self.leader,
                most_drafts=rank.shares.most_drafts,
                slots=self.rank.models[m.spec.name].stage.adapters,
            )
            for m in rank.shares.models
        }
        runners: dict[str, ModelRunner] = dict(self.runners)
        self.core = Core(
            runners,
            arena_bytes=arena_bytes,
            slab_bytes=rank.shares.slab_bytes,
            knobs=knobs,
            clock=clock,
            use_threads=self.leader.use_threads,
            drafts=drafts,
        )
        try:
            load_adapters(self.core, spec.core.models)
        except BaseException:
            self.close()
            raise

    def _load(self, rank: Rank, store: Any, seconds: float) -> dict[str, int]:
        """All ranks' weights; their bytes by model, over all ranks."""
        own = rank.load(store)
        others = self._followers.wait_ready(seconds)
        return {name: size + sum(ready.weight_bytes[name] for ready in others) for name, size in own.items()}

    def _take_arena(self, rank: Rank, seconds: float) -> int:
        """As much as the rank with the least memory has, on all of them: block tables are the same everywhere."""
        self._followers.tell(Rehearse())
        try:
            own = rank.room(self._followers.check)
        except RankLostError:
            self._followers.check(patience=1.0)  # who broke the collective may have said why
            raise
        rooms = [own, *(room.arena_bytes for room in self._followers.wait_rooms(seconds))]
        logger.info("arenas of %s on each rank: the least of %s", format_bytes(min(rooms)),
                    ", ".join(map(format_bytes, rooms)))  # fmt: skip
        self._followers.tell(TakeArena(min(rooms)))
        rank.take_arena(min(rooms))
        return min(rooms)

    def close(self) -> None:
        """End all ranks of the replica in good order; idempotent."""
        self.leader.stop()
        self._followers.close()
        self._connections.close()
