"""A laptop that is off at the scheduled time retrains at its next start, as the database remembers."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.quality import retrain_runs
from quality.retraining.runs import Made, RetrainRuns, Run
from quality.retraining.schedule import RetrainJob
from quality.store.queries import insert_records
from tests.quality.loop_world import rows
from tests.quality.store.records import make_record

SUNDAY = datetime(2024, 1, 7, 3, 0, tzinfo=UTC)
DONE = {"status": "done"}


class Laptop:
    """Processes on one database with a clock of its own. `die`: they leave their run unfinished."""

    def __init__(self, engine: AsyncEngine, now: datetime) -> None:
        self.engine, self.now, self.die = engine, now, False
        self.made: list[str] = []

    async def use(self) -> None:
        async with self.engine.begin() as connection:
            await insert_records(connection, [make_record(created_at=self.now.timestamp())])

    def process(self) -> RetrainJob:
        runs = RetrainRuns(self.engine, 120.0)

        async def run(due: datetime) -> None:
            got = await runs.acquire("cron", self.now.timestamp(), due.timestamp())
            if isinstance(got, Run):
                self.made.append(got.run_id)
                if not self.die:
                    async with self.engine.begin() as connection:
                        await runs.finish(
                            connection, got, self.now.timestamp(), action="retrain.done", reason="test", fields=DONE
                        )

        return RetrainJob(run, runs.known_until, clock=lambda: self.now)


async def test_a_laptop_that_is_off_every_sunday_retrains_on_mondays(engine: AsyncEngine) -> None:
    laptop = Laptop(engine, SUNDAY - timedelta(days=6))
    await laptop.process().check()
    await laptop.use()
    laptop.now = SUNDAY - timedelta(days=1)
    await laptop.process().check()
    assert laptop.made == []

    for week in (1, 2, 3):
        laptop.now = SUNDAY + timedelta(days=7 * week - 6)
        for _ in range(2):
            await laptop.process().check()
        assert len(laptop.made) == week


async def test_weeks_without_a_start_are_one_missed_run(engine: AsyncEngine) -> None:
    laptop = Laptop(engine, SUNDAY - timedelta(days=6))
    await laptop.use()

    laptop.now = SUNDAY + timedelta(days=60)
    process = laptop.process()
    for _ in range(3):
        await process.check()

    assert len(laptop.made) == 1


async def test_of_several_processes_one_makes_up_for_a_missed_run(any_engine: AsyncEngine) -> None:
    laptop = Laptop(any_engine, SUNDAY - timedelta(days=6))
    await laptop.use()

    laptop.now = SUNDAY + timedelta(days=1)
    await asyncio.gather(*(laptop.process().check() for _ in range(4)))

    assert len(laptop.made) == 1
    assert [(row["run_id"], row["trigger"]) for row in await rows(any_engine, retrain_runs)] == [
        (laptop.made[0], "cron")
    ]


async def test_a_process_that_saw_the_run_as_due_before_another_made_it_makes_none(any_engine: AsyncEngine) -> None:
    due, now = SUNDAY.timestamp(), SUNDAY.timestamp() + 60
    first, second = RetrainRuns(any_engine, 120.0), RetrainRuns(any_engine, 120.0)
    got = await first.acquire("cron", now, due)
    assert isinstance(got, Run)
    async with any_engine.begin() as connection:
        await first.finish(connection, got, now, action="retrain.done", reason="test", fields=DONE)

    assert await second.acquire("cron", now + 1, due) == Made(run_id=got.run_id)
    assert isinstance(await second.acquire("cron", now + 1, now + 0.5), Run)


@pytest.mark.parametrize("pause", [timedelta(minutes=3), timedelta(days=1)])
async def test_a_run_whose_process_died_is_taken_over_by_a_later_check(engine: AsyncEngine, pause: timedelta) -> None:
    laptop = Laptop(engine, SUNDAY - timedelta(days=6))
    await laptop.use()
    laptop.now, laptop.die = SUNDAY, True
    await laptop.process().check()

    laptop.now, laptop.die = SUNDAY + timedelta(minutes=1), False
    process = laptop.process()
    await process.check()
    assert len(laptop.made) == 1
    laptop.now = SUNDAY + pause
    for _ in range(2):
        await process.check()

    assert laptop.made == [laptop.made[0]] * 2
    assert [row["status"] for row in await rows(engine, retrain_runs)] == ["done"]
