"""A retraining as a Ray task: the order and the artefacts go to a node, the candidate and its evaluation come back."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import ray

from quality.retraining.training_process import (
    ORDER,
    RESULT,
    OnProgress,
    Order,
    TrainingProcessError,
    run_training_process,
)

ATTEMPTS_MORE = 1
"""Retries after the loss of its node."""
_ROOT, _INCUMBENT, _REGISTRY = "root", "incumbent", "registry"

Files = dict[str, bytes]
"""A folder's files by relative path, as sent between machines that share no disk."""


class Trained(msgspec.Struct, frozen=True):
    """The result as the training process wrote it, and the candidate under its folder's name."""

    result: dict[str, Any]
    name: str
    candidate: Files


async def train_on_cluster(folder: Path, on_progress: OnProgress, *, timeout_seconds: float) -> None:
    """A `quality.retraining.training_process.Train` on any node of the cluster that this process has joined."""
    order = msgspec.json.decode((folder / ORDER).read_bytes(), type=Order)
    task: Any = ray.remote(_train).options(num_cpus=1, max_retries=ATTEMPTS_MORE)
    sent = await asyncio.to_thread(
        task.remote,
        _files_of(folder),
        _files_of(Path(order.root_artefact)),
        _files_of(Path(order.incumbent)),
        timeout_seconds,
    )
    on_progress("training on the cluster", 0.1)
    try:
        trained: Trained = await asyncio.to_thread(ray.get, sent, timeout=timeout_seconds)
    except ray.exceptions.RayError as error:
        ray.cancel(sent, force=True)
        why = getattr(error, "cause", None) or error
        raise TrainingProcessError(f"the training on the cluster failed: {why}") from error
    except asyncio.CancelledError:
        ray.cancel(sent, force=True)
        raise
    candidate = Path(order.registry) / trained.name
    await asyncio.to_thread(_write_files, trained.candidate, candidate)
    result = folder / f".{RESULT}"
    result.write_bytes(msgspec.json.encode(trained.result | {"path": str(candidate)}))
    result.replace(folder / RESULT)
    on_progress("done", 1.0)


def _train(files: Files, root: Files, incumbent: Files, timeout_seconds: float) -> Trained:
    with tempfile.TemporaryDirectory(prefix="aio-training-") as name:
        there = Path(name)
        order = msgspec.json.decode(files[ORDER], type=Order)
        # The artefacts keep their names, by which the candidate names its parent.
        folders = [there / _ROOT / Path(order.root_artefact).name, there / _INCUMBENT / Path(order.incumbent).name]
        for folder, held in zip(folders, (root, incumbent), strict=True):
            _write_files(held, folder)
        (there / _REGISTRY).mkdir()
        moved = msgspec.structs.replace(
            order, root_artefact=str(folders[0]), incumbent=str(folders[1]), registry=str(there / _REGISTRY)
        )
        work = there / "work"
        _write_files(files | {ORDER: msgspec.json.encode(moved)}, work)
        asyncio.run(run_training_process(work, lambda step, share: None, timeout_seconds=timeout_seconds))
        result = msgspec.json.decode((work / RESULT).read_bytes())
        candidate = Path(result["path"])
        return Trained(result, str(candidate.relative_to(there / _REGISTRY)), _files_of(candidate))


def _files_of(folder: Path) -> Files:
    """Return every file below `folder` by its relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def _write_files(files: Files, folder: Path) -> None:
    """Write the folder; an existing one is kept."""
    if folder.exists():
        return
    unfinished = folder.with_name(f".{folder.name}.part")
    unfinished.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        path = unfinished / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    unfinished.replace(folder)
