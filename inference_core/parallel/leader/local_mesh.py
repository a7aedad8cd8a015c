"""A mesh led by this process: starts the other ranks, here or elsewhere, and loads the model over all of them."""

import os
from pathlib import Path
from types import TracebackType

import msgspec

from inference_core.core import Core
from inference_core.errors import MeshError
from inference_core.parallel.communication.connections import open_store
from inference_core.parallel.leader.leader import MeshLeader, publish
from inference_core.parallel.ranks.local_ranks import LOOPBACK, THIS_MACHINE, RankHosts
from inference_core.parallel.topology.environment import RankEnvironment
from inference_core.parallel.topology.mesh_spec import AnyMeshSpec


class LocalMesh:
    """One replica, in `hosts`, as a context manager. `core` is driven as any other Core, on the thread that made this.

    `knobs_file`: where changes of knobs that are to be kept are kept. A process leads one mesh at a time.

    Raises MeshError for more than one replica, since each has a leader of its own (see `python -m
    inference_core.parallel`), and what `LedMesh` raises.
    """

    def __init__(
        self, spec: AnyMeshSpec, cache_dir: Path, *, knobs_file: Path | None = None, hosts: RankHosts = THIS_MACHINE
    ) -> None:
        if spec.mesh.replicas > 1:
            raise MeshError(
                f"{spec.mesh.replicas} replicas need as many leaders; start them with python -m inference_core.parallel"
            )
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
