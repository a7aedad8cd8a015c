"""Checks that every machine has the same model files, with one hash per machine: ranks read only their own shards."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from inference_core.errors import MeshError
from inference_core.loaders.checkpoint import Checkpoint
from inference_core.parallel.topology.environment import RankEnvironment


def check_checkpoint_hashes(
    environment: RankEnvironment, store: Any, files: Iterable[tuple[str, Checkpoint]], seconds: float
) -> dict[str, str]:
    """Return the content hash of every model by name. Each machine's first rank hashes the files, unless cached.

    `files`: names with checkpoints, the same on all ranks. `seconds`: timeout for the other ranks' hashes.
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
                f"{name}: the file {checkpoint.path} on machine {machine} differs from machine 0's; copy that one"
            )
    return agreed
