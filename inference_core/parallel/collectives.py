"""Tensors between ranks: the process groups that carry them, and the collective operations of a step.

Ranks find each other through a store that all of them read. A step sums and gathers within a stage and sends
activations between stages. A lost rank hangs collectives, so waits check the ranks and have a timeout.
"""

import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _abort_process_group

from inference_core.errors import MeshError, RankLostError
from inference_core.parallel.mesh import Mesh, RankEnvironment


@contextmanager
def _collective(what: str) -> Iterator[None]:
    """Raises RankLostError if a connection breaks or a rank exceeds the timeout."""
    try:
        yield
    except RuntimeError as error:
        raise RankLostError(f"{what} broke off: {error}") from error


class TensorGroup:
    """The ranks that share the layers of a stage; `index` is this rank's position. With one rank, all calls are no-ops.

    `calls` counts collective operations by name. A sum has the same bits on all ranks, so later results stay equal on
    all ranks without a comparison.
    """

    def __init__(self, ranks: list[int], rank: int, group: Any = None) -> None:
        """`group`: the torch.distributed process group of `ranks` (None: this rank alone)."""
        self.ranks = ranks
        self.index = ranks.index(rank)
        self.calls: Counter[str] = Counter()
        self._group = group

    @property
    def size(self) -> int:
        return len(self.ranks)

    def all_reduce(self, part: torch.Tensor) -> torch.Tensor:
        """Replace `part` [...] by the sum over the ranks, in place."""
        if self.size > 1:
            self.calls["all_reduce"] += 1
            with _collective("a sum over the ranks"):
                dist.all_reduce(part, group=self._group)
        return part

    def gather_columns(self, part: torch.Tensor, widths: list[int]) -> torch.Tensor | None:
        """[rows, sum of widths] on the first rank, None on the others; `part` [rows, widths[index]] from each."""
        if self.size == 1:
            return part
        self.calls["gather"] += 1
        widest = max(widths)
        # Backends gather equal shapes only.
        padded = part if part.shape[1] == widest else part.new_zeros(part.shape[0], widest)
        if padded is not part:
            padded[:, : part.shape[1]] = part
        parts = [torch.empty_like(padded) for _ in widths] if self.index == 0 else None
        with _collective("gathering the vocabulary"):
            dist.gather(padded.contiguous(), parts, dst=self.ranks[0], group=self._group)
        if parts is None:
            return None
        return torch.cat([each[:, :width] for each, width in zip(parts, widths, strict=True)], dim=1)


class PipelineLinks:
    """Sends activations to the next stage and receives them from the previous one, between ranks of equal index.

    `send` returns at once, so that a stage computes its next micro-batch during the transfer of the last one
    (SPEC PX-03); `finish` waits until all sends are complete.
    """

    def __init__(self, before: int | None, after: int | None) -> None:
        """Ranks; None at the ends of the pipeline."""
        self._before = before
        self._after = after
        self._travelling: list[tuple[Any, torch.Tensor]] = []

    def send(self, hidden: torch.Tensor, to: int | None = None) -> None:
        """Send `hidden` [T, hidden size] to the next stage, or to rank `to`. Do not change it before `finish`."""
        target = self._after if to is None else to
        tensor = hidden.contiguous()
        with _collective(f"sending to rank {target}"):
            self._travelling.append((dist.isend(tensor, target), tensor))

    def receive(self, into: torch.Tensor, source: int | None = None) -> torch.Tensor:
        """Fill `into` with the next tensor of the previous stage, or of rank `source`."""
        origin = self._before if source is None else source
        with _collective(f"receiving from rank {origin}"):
            dist.recv(into, origin)
        return into

    def finish(self) -> None:
        with _collective("sending"):
            for work, _ in self._travelling:
                work.wait()
        self._travelling.clear()


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


_POLL_SECONDS = 0.05
_PAUSE_SECONDS = 20e-6


def wait_for_device(device: torch.device, check_ranks: Callable[[], None], seconds: float) -> None:
    """Wait until `device` has finished all work launched so far. A no-op on the CPU.

    `check_ranks` is called about every 0.05 s and may raise. Raises RankLostError after `seconds`.
    """
    if device.type == "cuda":
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(device))
        wait_until(event.query, check_ranks, seconds)


def wait_until(
    done: Callable[[], bool],
    check_ranks: Callable[[], None],
    seconds: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Poll `done` until it returns true; see `wait_for_device`."""
    began = looked = clock()
    while not done():
        now = clock()
        if now - began > seconds:
            raise RankLostError(
                f"the device did not finish within {seconds:g} seconds; a rank may hang, see their logs"
            )
        if now - looked > _POLL_SECONDS:
            looked = now
            check_ranks()
        pause(_PAUSE_SECONDS)
