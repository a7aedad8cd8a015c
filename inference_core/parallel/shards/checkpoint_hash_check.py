"""One hash of every model file per machine, and the same on all machines: ranks read their shares only."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from inference_core.errors import MeshError
from inference_core.loaders.checkpoint import Checkpoint
from inference_core.parallel.topology.environment import RankEnvironment


def check_checkpoint_hashes(
    environment: RankEnvironment, store: Any, files: Iterable[tuple[str, Checkpoint]], seconds: float
) -> dict[str, str]:
    """The content hash of every model by its name; each machine's first rank reads the files for it, if need be.

    `files`: names with checkpoints, the same on all ranks. `seconds`: how long others may take to read.
    Raises MeshError if this machine's file differs from that of the first machine.
    """
    machine = environment.rank // environment.local_world_size
    agreed: dict[str, str] = {}
    for name, checkpoint in files:
        own, first = f"file/{machine}/{name}", f"file/0/{name}"
        if environment.local_rank == 0:
            store.set(own, checkpoint.fingerprint)
        store.wait([own, first], timedelta(seconds=seconds))
        agreed[name] = store.get(own).decode()
        if agreed[name] != store.get(first).decode():
            raise MeshError(
                f"{name}: the file {checkpoint.path} on machine {machine} is not the one on machine 0; copy that one"
            )
    return agreed
