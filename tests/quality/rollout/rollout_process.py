"""Replicas as separate processes: one killed at a stage of the job, and two that start it at once.

Training takes seconds and is not under test: its result is written by hand.
"""

import asyncio
import os
import signal
from collections.abc import Callable
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path
from typing import Any

import msgspec

from classifier.registry.registry import ArtefactRegistry
from quality.retraining.retrain import RetrainResult, RetrainSettings, retrain
from quality.retraining.runs import RetrainRuns
from quality.retraining.training_process import RESULT
from quality.rollout.rollout import RolloutDecision, Rollouts
from quality.store.database import open_database

SETTINGS = RetrainSettings(catalogue_fingerprint="serving", models={"serving": ["a", "b", "c", "d"]})


class Training:
    """Replaces the training process: its result is `version` as a better candidate."""

    def __init__(self, registry: ArtefactRegistry, version: str, before: Callable[[], None] = lambda: None) -> None:
        self._path, self._version, self._before, self.times = registry.root / version, version, before, 0

    async def __call__(self, folder: Path, on_progress: object, *, timeout_seconds: float) -> None:
        self.times += 1
        await asyncio.to_thread(self._before)
        judgement: dict[str, Any] = {"reasons": [], "gain": [0.1, 0.05, 0.15], "outdated": {}}
        result = {"version": self._version, "path": str(self._path), "judgement": judgement}
        (folder / RESULT).write_bytes(msgspec.json.encode(result))


async def retrain_once(url: str, root: Path, training: Training, now: float) -> RetrainResult:
    engine = open_database(url)
    try:
        registry = ArtefactRegistry(root)
        return await retrain(engine, registry, SETTINGS, trigger="cli", clock=lambda: now, train=training)
    finally:
        await engine.dispose()


async def advance_once(url: str, root: Path, now: float) -> RolloutDecision | None:
    engine = open_database(url)
    try:
        return await Rollouts(engine, ArtefactRegistry(root), clock=lambda: now).advance()
    finally:
        await engine.dispose()


def killed_in_retraining(stage: str, url: str, root: Path, version: str) -> None:
    """Retrain, and die once `stage` is reached."""
    if stage == "deciding":
        _die_at(RetrainRuns, "finish")
    elif stage == "canary":
        _die_at(ArtefactRegistry, "start_canary")
    else:
        advance = RetrainRuns.advance

        async def advance_and_die(self: RetrainRuns, run: Any, step: str, *rest: Any) -> None:
            await advance(self, run, step, *rest)
            if step == stage:
                die()

        RetrainRuns.advance = advance_and_die  # type: ignore[method-assign]
    training = Training(ArtefactRegistry(root), version, die if stage == "training" else lambda: None)
    asyncio.run(retrain_once(url, root, training, 5000.0))


def killed_in_advancing(url: str, root: Path) -> None:
    """Advance the rollout, and die between the pointer and the commit."""
    _die_at(ArtefactRegistry, "promote")
    asyncio.run(advance_once(url, root, 6000.0))


def replica(url: str, root: Path, version: str, both: Barrier, other_ended: Event, outcomes: Any) -> None:
    """Retrain as soon as the other replica is up too; the one that trains waits for the other's end."""

    def wait() -> None:
        if not other_ended.wait(120):
            raise TimeoutError

    both.wait(120)
    result = asyncio.run(retrain_once(url, root, Training(ArtefactRegistry(root), version, wait), 5000.0))
    other_ended.set()
    outcomes.put(result.outcome)


def advancing_replica(url: str, root: Path, both: Barrier, outcomes: Any) -> None:
    """Advance as soon as the other replica is up too."""
    both.wait(120)
    said = asyncio.run(advance_once(url, root, 6000.0))
    outcomes.put(None if said is None else said.act)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _die_at(owner: type[Any], name: str) -> None:
    """Call the method, then exit the process."""
    method = getattr(owner, name)

    def last_act(*arguments: Any, **options: Any) -> None:
        if not asyncio.iscoroutinefunction(method):
            method(*arguments, **options)
        die()

    setattr(owner, name, last_act)
