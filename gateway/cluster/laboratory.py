"""Runs of the laboratory as Ray tasks: as many at once as the cluster has CPUs."""

import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import ray

from classifier.artefact import load_artefact
from classifier.outcome_model import OutcomeModel
from gateway.cluster.shipped_folder import Files, files_of, write_files
from quality.laboratory.run import RunResult
from quality.laboratory.study import Assignment
from quality.laboratory.world import World

ATTEMPTS_MORE = 3
"""How often a run is begun again whose node was lost."""


def on_cluster(world: World, assignments: Sequence[Assignment]) -> Iterable[RunResult]:
    """A `quality.laboratory.study.RunAll` over the cluster that this process has joined. The same seeds give the same
    results as here."""
    shipped = ray.put(files_of(world.shipped))
    # The model is read again from the artefact, which a run needs anyway.
    bare = ray.put(replace(world, model=cast(OutcomeModel, None)))
    task: Any = ray.remote(_run).options(num_cpus=1, max_retries=ATTEMPTS_MORE)
    waiting = [task.remote(shipped, bare, assignment) for assignment in assignments]
    try:
        while waiting:
            (done,), waiting = ray.wait(waiting, num_returns=1)
            yield ray.get(done)
    finally:
        for reference in waiting:
            ray.cancel(reference)


def _run(shipped: Files, bare: World, assignment: Assignment) -> RunResult:
    with tempfile.TemporaryDirectory(prefix="aio-laboratory-") as folder:
        os.nice(max(0, 10 - os.nice(0)))
        artefact = Path(folder) / bare.shipped.name
        write_files(shipped, artefact)
        return assignment.run(replace(bare, shipped=artefact, model=load_artefact(artefact)))
