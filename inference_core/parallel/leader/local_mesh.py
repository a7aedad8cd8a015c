"""A mesh led by this process: starts the other ranks, here or elsewhere, and loads the model over all of them."""

import os
from pathlib import Path
from types import TracebackType

import msgspec

from inference_core.core import Core
from inference_core.parallel.communication.connections import open_store
from inference_core.parallel.leader.leader import MeshLeader, publish
from inference_core.parallel.ranks.local_ranks import LOOPBACK, THIS_MACHINE, RankHosts
from inference_core.parallel.topology.environment import RankEnvironment
from inference_core.parallel.topology.mesh_spec import MeshSpec


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
