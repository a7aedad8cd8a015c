"""How ranks find each other: a store that all ranks read, and the process groups that carry their tensors."""

import os
import socket
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _abort_process_group

from inference_core.errors import MeshError
from inference_core.parallel.communication.collectives import PipelineLinks, TensorGroup
from inference_core.parallel.topology.environment import RankEnvironment
from inference_core.parallel.topology.mesh import Mesh

# The torch.distributed backend by device type. Commands and reports use `control` on every device.
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}


def open_store(environment: RankEnvironment, seconds: float) -> Any:
    """The torch.distributed store that every rank reaches; rank 0 holds it unless torchrun does."""
    hosted_here = environment.rank == 0 and not environment.agent_store
    store = dist.TCPStore(
        environment.master,
        environment.port,
        is_master=hosted_here,
        timeout=timedelta(seconds=seconds),
        wait_for_workers=False,
    )
    # Ranks that torchrun has restarted must not read what the previous attempt wrote.
    return dist.PrefixStore(f"aio/{environment.attempt}", store)


def own_address(environment: RankEnvironment) -> str:
    """This machine's address on the route to rank 0's machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((environment.master, environment.port or 1))  # sends nothing
        address: str = probe.getsockname()[0]
    return address


class Connections:
    """This rank's process groups: `group` for its stage, `links` to the neighbouring stages."""

    def __init__(
        self, environment: RankEnvironment, mesh: Mesh, store: Any, device: torch.device, seconds: float
    ) -> None:
        """`seconds`: timeout of a collective; after it, its ranks count as lost. Raises MeshError."""
        check_world(environment, mesh)
        backend = BACKENDS.get(device.type)
        if backend is None:
            raise MeshError(f"ranks cannot compute on {device.type}; possible are {', '.join(BACKENDS)}")
        if dist.is_initialized():
            raise MeshError("this process is a rank of another mesh already; close that one first")
        if backend == "nccl":
            # NCCL's watchdog would end the process, and on a leader that is the server; leaders time their own steps.
            os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        dist.init_process_group(
            backend,
            store=store,
            rank=environment.rank,
            world_size=environment.world_size,
            timeout=timedelta(seconds=seconds),
            device_id=device if backend == "nccl" else None,
        )
        self._backend = backend
        rank, group = environment.rank, None
        if mesh.tensor > 1:
            # Every rank has to make every group, in the same order.
            groups = {tuple(ranks): dist.new_group(ranks) for ranks in mesh.tensor_groups()}
            group = groups[tuple(mesh.tensor_group(rank))]
        self.group = TensorGroup(mesh.tensor_group(rank), rank, group)
        at = mesh.position(rank)
        before = mesh.rank(at.stage - 1, at.shard) if at.stage else None
        after = mesh.rank(at.stage + 1, at.shard) if at.stage + 1 < mesh.pipeline else None
        self.links = PipelineLinks(before, after)

    def close(self) -> None:
        """Leave all groups, when all ranks do. With gloo, ranks that wait for this one get an error at once."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def abandon(self) -> None:
        """Leave all groups while other ranks stay, and abort the collectives this rank's device waits for."""
        if self._backend != "nccl":
            self.close()
        elif dist.is_initialized():
            # Destroying the group would wait for collectives that a lost rank never finishes.
            _abort_process_group()


def check_world(environment: RankEnvironment, mesh: Mesh) -> None:
    """Raises MeshError unless there are as many ranks as the mesh has, and no tensor group spans machines."""
    if environment.world_size != mesh.size:
        raise MeshError(
            f"{environment.world_size} ranks were started for a mesh of {mesh.tensor} tensor x {mesh.pipeline} "
            f"pipeline = {mesh.size}"
        )
    mesh.check_node(environment.local_world_size)
