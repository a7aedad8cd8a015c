"""How ranks find each other: a store that all of them read, and the process groups that their tensors travel in."""

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

# What carries tensors of a device between ranks. Orders and reports travel by `control`, whatever the device.
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
    # Ranks that torchrun has started anew must not read what their predecessors wrote.
    return dist.PrefixStore(f"aio/{environment.attempt}", store)


def own_address(environment: RankEnvironment) -> str:
    """The address of this machine that rank 0's machine is reached from."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((environment.master, environment.port or 1))  # sends nothing
        address: str = probe.getsockname()[0]
    return address


class Connections:
    """This rank's process groups. `group` and `links` are what computing needs; `close` cuts all ties."""

    def __init__(
        self, environment: RankEnvironment, mesh: Mesh, store: Any, device: torch.device, seconds: float
    ) -> None:
        """`seconds`: how long a collective may take before its ranks are taken for dead. Raises MeshError."""
        check_world(environment, mesh)
        backend = BACKENDS.get(device.type)
        if backend is None:
            raise MeshError(f"ranks cannot compute on {device.type}; possible are {', '.join(BACKENDS)}")
        if dist.is_initialized():
            raise MeshError("this process is a rank of another mesh already; close that one first")
        if backend == "nccl":
            # Its watchdog would end the process, the server's if it leads; leaders watch over their steps themselves.
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
        before = mesh.rank(at.replica, at.stage - 1, at.shard) if at.stage else None
        after = mesh.rank(at.replica, at.stage + 1, at.shard) if at.stage + 1 < mesh.pipeline else None
        self.links = PipelineLinks(before, after)

    def close(self) -> None:
        """Leave all groups, which all ranks do; with gloo, ranks that wait for this one get an error at once."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def abandon(self) -> None:
        """Leave all groups although others do not, and end what this rank's device waits for."""
        if self._backend != "nccl":
            self.close()
        elif dist.is_initialized():
            # Destroying would wait for collectives that a lost rank never finishes.
            _abort_process_group()


def check_world(environment: RankEnvironment, mesh: Mesh) -> None:
    """Raises MeshError unless there are as many ranks as the mesh has, and no tensor group spans machines."""
    if environment.world_size != mesh.size:
        raise MeshError(
            f"{environment.world_size} ranks were started for a mesh of {mesh.tensor} tensor x {mesh.pipeline} "
            f"pipeline x {mesh.replicas} replicas = {mesh.size}"
        )
    mesh.check_node(environment.local_world_size)
