"""The leader of a mesh: gathers its ranks, loads its own shard, and drives all ranks through a Core; and what follows
it: a rank that joins, loads its shard, and executes commands until `Stop`.

A mesh led by this process starts the other ranks, here or elsewhere, and loads the model over all of them.
"""

import contextlib
import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import msgspec

from inference_core.engine.core import Core
from inference_core.errors import ModelFileError, RankLostError
from inference_core.execution.runner import ModelRunner
from inference_core.kv_cache.memory_plan import format_bytes
from inference_core.loading.prepare_core import load_adapters, paired_drafts, pin_prefixes
from inference_core.model_spec import DeviceCoreSpec
from inference_core.parallel.collectives import open_store, own_address
from inference_core.parallel.control import Followers, LeaderLink
from inference_core.parallel.local_ranks import LOOPBACK, THIS_MACHINE, RankHosts
from inference_core.parallel.mesh import Mesh, MeshSpec, RankEnvironment
from inference_core.parallel.mesh_runner import MeshExecutor, MeshRunner
from inference_core.parallel.messages import (
    AdapterRead,
    AllocateArena,
    ArenaCapacity,
    Divided,
    Failed,
    ProfileMemory,
    ReadAdapter,
    Ready,
    ReceivedTables,
    StepCommand,
    Stop,
    UseThreads,
)
from inference_core.parallel.rank import Rank

SPEC_KEY = "spec"
# The store key under which the leader publishes its address.
LEADER_KEY = "leader"
logger = logging.getLogger(__name__)


def publish(store: Any, spec: MeshSpec) -> None:
    """Write the specification to the store, so that all ranks load the same. Rank 0 calls it."""
    store.set(SPEC_KEY, msgspec.json.encode(spec))


def no_check() -> None:
    """Check no ranks: the launcher that started them reports the ones that end."""


class MeshLeader:
    """A mesh whose leader is this process. Drive `core` like any other Core; call `close` at the end.

    Raises MeshError, ModelFileError or MemoryPlanError for what cannot be loaded: before it waits for any rank, except
    for adapters. Raises RankLostError if a rank does not join or fails to load. `check_ranks` is called while waiting
    for ranks and raises RankLostError if one is known to have ended.
    """

    def __init__(
        self,
        environment: RankEnvironment,
        store: Any,
        spec: MeshSpec,
        cache_dir: Path,
        *,
        check_ranks: Callable[[], None] = no_check,
        knobs_file: Path | None = None,
    ) -> None:
        drafts = paired_drafts(spec.core.models)
        rank = Rank(environment, spec, cache_dir)
        knobs = rank.loader.knobs(knobs_file)
        self._followers = Followers(range(1, spec.mesh.size), own_address(environment))
        try:
            store.set(LEADER_KEY, self._followers.address)
            self._followers.accept(spec.join_seconds, check_ranks)
            # No rank joins a process group that never completes.
            self._followers.wait(Divided, spec.join_seconds)
            rank.connect(store)
        except BaseException:
            self._followers.close()
            raise
        self._connections = rank.connections
        try:
            weight_bytes = self._load(rank, store, spec.load_seconds)
            arena_bytes = self._allocate_arena(rank, spec.load_seconds)
        except BaseException:
            self._followers.close()
            self._connections.abandon()
            raise
        self.rank = rank.runner
        self.leader = MeshExecutor(rank, self._followers, spec.step_seconds)
        self.group = self._connections.group
        self.runners = {
            m.spec.name: MeshRunner(
                m.info(weight_bytes[m.spec.name]),
                m.config,
                m.layout,
                self.leader,
                most_drafts=rank.loader.most_drafts,
                slots=self.rank.models[m.spec.name].stage.adapters,
                pipeline=self.rank.models[m.spec.name].pipeline,
            )
            for m in rank.loader.models
        }
        runners: dict[str, ModelRunner] = dict(self.runners)
        self.core = Core(
            runners,
            arena_bytes=arena_bytes,
            slab_bytes=rank.loader.slab_bytes,
            knobs=knobs,
            use_threads=lambda threads: self.leader.execute(UseThreads(threads)),
            drafts=drafts,
            pinned_share=spec.core.pinned_share,
        )
        try:
            load_adapters(self.core, spec.core.models)
            pin_prefixes(self.core, spec.core.models, spec.core.prefixes)
        except BaseException:
            self.close()
            raise

    def _load(self, rank: Rank, store: Any, seconds: float) -> dict[str, int]:
        """Load the weights on all ranks. Returns their bytes by model, summed over the ranks."""
        own = rank.load(store)
        others = self._followers.wait(Ready, seconds)
        return {name: size + sum(ready.weight_bytes[name] for ready in others) for name, size in own.items()}

    def _allocate_arena(self, rank: Rank, seconds: float) -> int:
        """Allocate arenas as large as the rank with the least memory allows, since all ranks share block tables."""
        self._followers.send(ProfileMemory())
        try:
            own = rank.arena_capacity(self._followers.check)
        except RankLostError:
            self._followers.check(patience=1.0)  # the rank that broke the collective may have reported why
            raise
        capacities = [own, *(report.arena_bytes for report in self._followers.wait(ArenaCapacity, seconds))]
        logger.info("arenas of %s on each rank: the least of %s", format_bytes(min(capacities)),
                    ", ".join(map(format_bytes, capacities)))  # fmt: skip
        self._followers.send(AllocateArena(min(capacities)))
        rank.allocate_arena(min(capacities))
        return min(capacities)

    def close(self) -> None:
        """Stop all ranks; idempotent."""
        self.leader.stop()
        self._followers.close()
        self._connections.close()


class LocalMesh:
    """A mesh on `hosts`, as a context manager. Drive `core` like any other Core, on the thread that made this.

    `knobs_file`: stores knob changes that outlast the process. A process leads one mesh at a time.

    Raises the errors of `MeshLeader`.
    """

    def __init__(
        self, spec: MeshSpec, cache_dir: Path, *, knobs_file: Path | None = None, hosts: RankHosts = THIS_MACHINE
    ) -> None:
        if hosts.master == LOOPBACK:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        size, each = spec.mesh.size, spec.mesh.size // hosts.nodes
        leader = RankEnvironment(
            rank=0, world_size=size, local_rank=0, local_world_size=each, master=hosts.master, port=0
        )
        store = open_store(leader, spec.join_seconds)
        leader = msgspec.structs.replace(leader, port=store.underlying_store.port)
        publish(store, spec)
        others = [msgspec.structs.replace(leader, rank=rank, local_rank=rank % each) for rank in range(1, size)]
        self.ranks = hosts.start(others, ["--cache-dir", str(cache_dir)])
        try:
            self.mesh = MeshLeader(leader, store, spec, cache_dir, check_ranks=self.ranks.check, knobs_file=knobs_file)
        except BaseException:
            self.ranks.close(grace_seconds=0)
            raise

    @property
    def core(self) -> Core:
        return self.mesh.core

    def close(self) -> None:
        """End all ranks and wait for their processes."""
        self.mesh.close()
        self.ranks.close()

    def __enter__(self) -> "LocalMesh":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def load_device_mesh(
    core: DeviceCoreSpec,
    cards: Sequence[int],
    cache_dir: Path,
    *,
    device: Literal["cuda", "cpu"] = "cuda",
    card_bytes: int | None = None,
    mesh: Mesh | None = None,
    knobs_file: Path | None = None,
    hosts: RankHosts = THIS_MACHINE,
) -> LocalMesh:
    """Load `core` over devices `cards` (indices) of every machine of `hosts`; each but the first has its own process.

    Call it on the thread that will step the returned mesh's `core`; the mesh's `close` ends the other processes. A
    process leads one mesh at a time. `mesh` has as many ranks as there are cards in all; None: tensor parallel over all
    cards. Uneven heads, inner columns and vocabularies are split unevenly. `device` "cpu" computes the same on the
    host, slowly, with `card_bytes` of memory per rank. `knobs_file`: stores knob changes that outlast the process.

    Raises MeshError for missing cards or a model that cannot be divided, ModelFileError for a bad file,
    MemoryPlanError, with the arithmetic, if the model does not fit on this process's card, and RankLostError, with the
    rank's error message, if another rank fails.
    """
    spec = MeshSpec(
        core=core,
        mesh=mesh or Mesh(tensor=len(cards) * hosts.nodes),
        device=device,
        devices=list(cards),
        host_bytes=card_bytes,
        uneven_splits=True,
    )
    return LocalMesh(spec, cache_dir, knobs_file=knobs_file, hosts=hosts)


_GRACE_SECONDS = 3.0


def read_spec(store: Any) -> MeshSpec:
    """Wait for the specification that rank 0 publishes, and return it."""
    return msgspec.json.decode(store.get(SPEC_KEY), type=MeshSpec)


def follow(environment: RankEnvironment, store: Any, spec: MeshSpec, cache_dir: Path) -> None:
    """Serve as one rank until the leader sends `Stop`.

    Raises RankLostError when the leader is gone. Any other error is reported to the leader and then raised.
    """
    link = LeaderLink(store.get(LEADER_KEY).decode(), environment.rank, spec.join_seconds)
    threading.Thread(target=_end_with_leader, args=[link], daemon=True).start()
    try:
        _serve(environment, store, spec, cache_dir, link)
    except BaseException as error:
        lost = isinstance(error, RankLostError)
        with contextlib.suppress(RankLostError):  # the leader is the one that is gone
            link.report(Failed(environment.rank, str(error) if lost else f"{type(error).__name__}: {error}", lost))
        raise
    finally:
        link.close()


def _end_with_leader(link: LeaderLink) -> None:
    """End this process soon after its leader, even if a collective is still waiting."""
    link.wait_until_gone()
    time.sleep(_GRACE_SECONDS)
    os._exit(1)


def _serve(environment: RankEnvironment, store: Any, spec: MeshSpec, cache_dir: Path, link: LeaderLink) -> None:
    rank = Rank(environment, spec, cache_dir)
    link.report(Divided(environment.rank))
    rank.connect(store)
    link.report(Ready(environment.rank, rank.load(store)))
    tables: defaultdict[str, ReceivedTables] = defaultdict(ReceivedTables)
    while True:
        command = link.next_command()
        match command:
            case StepCommand():
                rank.runner.run(tables[command.model].step(command))
            case ProfileMemory():
                link.report(ArenaCapacity(environment.rank, rank.arena_capacity(no_check)))
            case AllocateArena():
                rank.allocate_arena(command.arena_bytes)
            case ReadAdapter():
                link.report(AdapterRead(environment.rank, _refusal(rank, command)))
            case Stop():
                rank.connections.close()
                return
            case _:
                rank.execute(command)


def _refusal(rank: Rank, command: ReadAdapter) -> str | None:
    """Read an adapter. Returns the reason if this rank cannot serve it, else None."""
    try:
        rank.execute(command)
    except ModelFileError as error:
        return str(error)
    return None
