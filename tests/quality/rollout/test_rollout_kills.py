"""After a kill at any stage the job resumes, and two replicas on one database never do it twice (QM-06)."""

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from multiprocessing.context import ForkServerContext
from typing import Any

import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.registry.registry import ArtefactRegistry, Canary
from migrations.tables.audit import audit_events
from migrations.tables.quality import classifier_versions, retrain_runs, rollouts
from quality.retraining.runs import Trigger, read_standing
from quality.retraining.schedule import RetrainJob
from quality.rollout.rollout import Rollouts
from tests.quality.loop_world import rows
from tests.quality.retraining.tiny_classifier import model_in, store_experience
from tests.quality.rollout.rollout_process import (
    Training,
    advance_once,
    advancing_replica,
    killed_in_advancing,
    killed_in_retraining,
    replica,
    retrain_once,
)
from tests.quality.rollout.rollout_world import BAD, GOOD, QUICK, begin, blind, store_probes, variant
from tests.support.database import migrated

pytestmark = pytest.mark.processes

SPAWN: ForkServerContext = multiprocessing.get_context("forkserver")
SPAWN.set_forkserver_preload(["quality.retraining.retrain", "quality.store.database"])


@pytest.fixture
def finish() -> Iterator[Callable[..., list[int | None]]]:
    """Run processes to their end; their exit codes."""
    begun: list[Any] = []

    def run(target: Callable[..., None], *calls: tuple[Any, ...]) -> list[int | None]:
        processes = [SPAWN.Process(target=target, args=call) for call in calls]
        begun.extend(processes)
        for process in processes:
            process.start()
        for process in processes:
            process.join(120)
        return [process.exitcode for process in processes]

    yield run
    for process in begun:
        if process.is_alive():
            process.kill()


async def _actions(engine: AsyncEngine) -> list[str]:
    return [row["action"] for row in await rows(engine, audit_events)]


async def _statuses(engine: AsyncEngine) -> dict[str, str]:
    return {row["version"]: row["status"] for row in await rows(engine, classifier_versions)}


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "stage",
    [pytest.param(stage, marks=SLOW) for stage in ("exported", "training", "deciding")] + ["trained", "canary"],
)
async def test_a_retraining_that_was_killed_goes_on_where_it_was(
    engine: AsyncEngine, sqlite_url: str, registry: ArtefactRegistry, finish: Callable[..., list[int]], stage: str
) -> None:
    incumbent = registry.current().name
    variant(registry, GOOD)
    await store_experience(engine, model_in(registry), 20)

    assert finish(killed_in_retraining, (stage, sqlite_url, registry.root, GOOD)) == [-signal.SIGKILL]
    assert registry.current().name == incumbent
    training = Training(registry, GOOD)

    async def run(due: datetime, trigger: Trigger) -> None:
        await retrain_once(sqlite_url, registry.root, training, 9000.0)

    # The next start, long after the lease of the dead.
    now = datetime.fromtimestamp(9000.0, UTC)
    await RetrainJob(run, partial(read_standing, engine), clock=lambda: now).check()
    await advance_once(sqlite_url, registry.root, 9000.0)

    assert training.times == (1 if stage in ("exported", "training") else 0)
    assert (registry.current().name, registry.canary()) == (incumbent, Canary(version=GOOD, share=0.1))
    assert await _statuses(engine) == {incumbent: "promoted", GOOD: "canary"}
    made = [run for run in await rows(engine, retrain_runs) if run["classifier_version"] == GOOD]
    assert [run["status"] for run in made] == ["done"]
    actions = await _actions(engine)
    assert [actions.count(action) for action in ("retrain.accepted", "classifier.canary_started")] == [1, 1]
    assert [row["status"] for row in await rows(engine, rollouts)] == ["running"]


@pytest.mark.parametrize(
    "stage", [pytest.param("promotion", marks=SLOW), pytest.param("end of a canary", marks=SLOW), "rollback"]
)
async def test_a_rollout_killed_around_the_pointer_write_is_completed_once(
    engine: AsyncEngine, sqlite_url: str, registry: ArtefactRegistry, finish: Callable[..., list[int]], stage: str
) -> None:
    incumbent, model = registry.current().name, model_in(registry)
    version = variant(registry, BAD, blind()) if stage != "promotion" else variant(registry, GOOD)
    settings = msgspec.structs.replace(QUICK, share=0.0 if stage == "rollback" else 0.1)
    await begin(Rollouts(engine, registry, clock=lambda: 5000.0), engine, version, settings)
    await store_probes(engine, model, 40, 5001.0)

    assert finish(killed_in_advancing, (sqlite_url, registry.root)) == [-signal.SIGKILL]
    # The pointer is where it will be, and the rows are where they were.
    wanted = version if stage == "promotion" else incumbent
    assert (registry.current().name, registry.canary()) == (wanted, None)
    assert [row["status"] for row in await rows(engine, rollouts)] == ["running"]
    await advance_once(sqlite_url, registry.root, 9000.0)

    assert (registry.current().name, registry.canary()) == (wanted, None)
    after = {"promotion": "promoted", "end of a canary": "rolled_back", "rollback": "rolled_back"}[stage]
    assert (await _statuses(engine))[version] == after
    assert (await _actions(engine)).count(f"classifier.{after}") == 1


async def test_two_replicas_on_one_postgresql_never_do_anything_twice(
    postgres_url: str, registry: ArtefactRegistry, finish: Callable[..., list[int]]
) -> None:
    model = model_in(registry)
    async with migrated(postgres_url) as engine:
        incumbent = registry.current().name
        variant(registry, BAD, blind())
        await store_experience(engine, model, 20)
        outcomes, both = SPAWN.Queue(), SPAWN.Barrier(2)

        call = (postgres_url, registry.root, BAD, both, SPAWN.Event(), outcomes)
        assert finish(replica, call, call) == [0, 0]

        assert sorted(outcomes.get(timeout=120) for _ in range(2)) == ["busy", "canary"]
        assert len(await rows(engine, retrain_runs)) == 1
        assert registry.canary() == Canary(version=BAD, share=0.1)

        await store_probes(engine, model, 40, 5001.0)
        advance = (postgres_url, registry.root, both, outcomes)
        assert finish(advancing_replica, advance, advance) == [0, 0]

        assert (registry.current().name, registry.canary()) == (incumbent, None)
        assert (await _actions(engine)).count("classifier.rolled_back") == 1
        assert await _statuses(engine) == {incumbent: "promoted", BAD: "rolled_back"}
