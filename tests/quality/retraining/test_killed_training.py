"""A training process that is killed at any of its steps: the run fails, and the next start makes it again."""

import signal
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.registry.registry import ArtefactRegistry
from migrations.tables.quality import retrain_runs
from quality.retraining.retrain import RetrainResult, retrain
from quality.retraining.runs import RetrainRuns, Trigger, read_standing
from quality.retraining.schedule import RetrainJob
from quality.retraining.training_process import TrainingProcessError
from tests.quality.loop_world import rows
from tests.quality.retraining.tiny_classifier import SETTINGS, base_artefact, fresh_registry, model_in, store_experience
from tests.support.served import run_at_start

pytestmark = pytest.mark.processes

# A Sunday, 03:00 UTC; the experience is from 1970.
DUE = datetime(2024, 1, 7, 3, 0, tzinfo=UTC).timestamp()
# In the training process: it is killed as soon as it has written that a step begins, before it goes on.
KILLED = """
import builtins, os, signal

os.nice = lambda _: 0
write = builtins.print

def write_and_die(*words, **options):
    write(*words, **options)
    if (step := os.environ.get("KILLED_AT")) and f'"{step}"' in str(words[0]):
        os.kill(os.getpid(), signal.SIGKILL)

builtins.print = write_and_die
"""


class Server:
    """Processes, one after the other, on one database and registry."""

    def __init__(self, engine: AsyncEngine, registry: ArtefactRegistry, environment: pytest.MonkeyPatch) -> None:
        self.engine, self.registry, self.now = engine, registry, DUE
        self.results: list[RetrainResult] = []
        self._environment = environment

    def kill_at(self, step: str) -> None:
        """Kill the training process of each run at this step; "": of none."""
        self._environment.setenv("KILLED_AT", step)

    async def starts(self) -> None:
        """A new process looks whether a retraining is due."""
        standing = partial(read_standing, self.engine)
        await RetrainJob(self._run, standing, clock=lambda: datetime.fromtimestamp(self.now, UTC)).check()

    async def _run(self, due: datetime, trigger: Trigger) -> None:
        made = await retrain(
            self.engine,
            self.registry,
            SETTINGS,
            trigger=trigger,
            due=due,
            clock=lambda: self.now,
        )
        self.results.append(made)


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return base_artefact(tmp_path_factory.mktemp("shipped"))


@pytest.fixture
def server(engine: AsyncEngine, shipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    for name, value in run_at_start(tmp_path / "site", KILLED).items():
        monkeypatch.setenv(name, value)
    return Server(engine, fresh_registry(tmp_path / "registry", shipped), monkeypatch)


@pytest.mark.parametrize("step", ["reading the rows", "training", "comparing with the incumbent"])
async def test_a_run_whose_training_process_is_killed_is_made_again_by_the_next_start(
    engine: AsyncEngine, server: Server, step: str
) -> None:
    await store_experience(engine, model_in(server.registry), 40)
    server.kill_at(step)

    await server.starts()
    [failed] = await rows(engine, retrain_runs)
    assert (failed["status"], failed["trigger"]) == ("failed", "cron")
    assert f"exit status -{signal.SIGKILL.value}" in failed["error"]

    server.kill_at("")
    server.now = DUE + 599
    await server.starts()
    assert server.results == [], "ten minutes after a failure"
    server.now = DUE + 601
    for _ in range(2):
        await server.starts()

    assert [result.outcome for result in server.results] == ["refused"], "40 rows are too few, and that is a result"
    assert [row["status"] for row in await rows(engine, retrain_runs)] == ["failed", "done"]
    assert (await read_standing(engine)).refused == server.results[0].reason


async def test_an_order_by_hand_does_not_wait_for_the_back_off(engine: AsyncEngine, server: Server) -> None:
    await store_experience(engine, model_in(server.registry), 40)
    server.kill_at("training")
    await server.starts()
    server.kill_at("")

    made = await retrain(engine, server.registry, SETTINGS, trigger="button", clock=lambda: DUE + 1)

    assert made.outcome == "refused"
    server.now = DUE + 3600
    await server.starts()
    assert server.results == [], "its result counts for the week"


@pytest.mark.parametrize("step", ["exported", "trained"])
async def test_a_run_whose_gateway_is_killed_between_steps_is_resumed_by_the_next_start(
    engine: AsyncEngine, server: Server, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed gateway writes nothing more: neither a failure nor the release of its lease."""
    await store_experience(engine, model_in(server.registry), 40)
    advance = RetrainRuns.advance

    async def advance_and_die(self: RetrainRuns, run: object, reached: str, *rest: object) -> None:
        await advance(self, run, reached, *rest)  # type: ignore[arg-type]
        if reached == step:
            raise TrainingProcessError("killed here")

    with monkeypatch.context() as patched:
        patched.setattr(RetrainRuns, "advance", advance_and_die)
        patched.setattr("quality.retraining.retrain._Retraining._fail", _writes_nothing)
        await server.starts()
    [unfinished] = await rows(engine, retrain_runs)
    assert (unfinished["status"], unfinished["step"]) == ("running", step)

    server.now += 60
    await server.starts()
    assert server.results == [], "its lease holds for two minutes"
    server.now += 61
    await server.starts()

    assert [result.run_id for result in server.results] == [unfinished["run_id"]]
    assert [row["status"] for row in await rows(engine, retrain_runs)] == ["done"]


async def _writes_nothing(self: object, error: Exception) -> None:
    """In place of a process that is no more."""
