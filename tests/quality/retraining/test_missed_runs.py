"""A laptop that is off at the scheduled time retrains at its next start, as the database remembers."""

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.quality import retrain_runs
from quality.retraining.runs import Made, RetrainRuns, Run, read_standing, wait_after
from quality.retraining.schedule import RetrainJob
from quality.store.queries import insert_records
from tests.quality.loop_world import rows
from tests.quality.store.records import make_record

SUNDAY = datetime(2024, 1, 7, 3, 0, tzinfo=UTC)
DONE = {"status": "done"}


class Laptop:
    """Processes on one database with a clock of its own. `die`: they leave their run unfinished; `fails`: it
    crashes, and they say so."""

    def __init__(self, engine: AsyncEngine, now: datetime) -> None:
        self.engine, self.now, self.die, self.fails = engine, now, False, False
        self.made: list[str] = []
        self.triggers: list[str] = []

    async def use(self) -> None:
        async with self.engine.begin() as connection:
            await insert_records(connection, [make_record(created_at=self.now.timestamp())])

    def process(self) -> RetrainJob:
        runs = RetrainRuns(self.engine, 120.0)

        async def run(due: datetime, trigger: str) -> None:
            got = await runs.acquire("cron", self.now.timestamp(), due.timestamp())
            if isinstance(got, Run):
                self.made.append(got.run_id)
                self.triggers.append(trigger)
                if not self.die:
                    outcome = {"status": "failed", "error": "crashed"} if self.fails else DONE
                    async with self.engine.begin() as connection:
                        await runs.finish(
                            connection, got, self.now.timestamp(), action="retrain.done", reason="test", fields=outcome
                        )
                if self.fails:
                    raise RuntimeError("crashed")

        return RetrainJob(run, partial(read_standing, self.engine), clock=lambda: self.now)


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


async def test_a_run_that_crashed_is_made_again_after_waits_that_survive_restarts(engine: AsyncEngine) -> None:
    laptop = Laptop(engine, SUNDAY - timedelta(days=6))
    await laptop.use()
    laptop.now, laptop.fails = SUNDAY, True
    for failures in (1, 2, 3):
        # Each check is that of a new process, which remembers nothing.
        await laptop.process().check()
        assert (len(laptop.made), (await read_standing(engine)).failures) == (failures, failures)
        wait = timedelta(seconds=wait_after(failures))
        laptop.now += wait - timedelta(seconds=1)
        await laptop.process().check()
        assert len(laptop.made) == failures
        laptop.now += timedelta(seconds=1)

    laptop.fails = False
    await laptop.process().check()
    standing = await read_standing(engine)
    assert [row["status"] for row in await rows(engine, retrain_runs)] == ["failed"] * 3 + ["done"]
    assert (standing.failures, standing.retry_at, standing.known_until) == (0, None, laptop.now.timestamp())

    laptop.now += timedelta(days=3)
    await laptop.process().check()
    assert len(laptop.made) == 4, "a success counts as made for the week"


async def test_of_several_processes_one_makes_a_failed_run_again(any_engine: AsyncEngine) -> None:
    laptop = Laptop(any_engine, SUNDAY - timedelta(days=6))
    await laptop.use()
    laptop.now, laptop.fails = SUNDAY, True
    await laptop.process().check()

    laptop.now += timedelta(minutes=10)
    await asyncio.gather(*(laptop.process().check() for _ in range(4)))

    assert len(laptop.made) == 2


async def _failed(engine: AsyncEngine, trigger: str, at: float) -> None:
    runs = RetrainRuns(engine, 120.0)
    got = await runs.acquire(trigger, at)
    assert isinstance(got, Run), "an order waits for no other"
    async with engine.begin() as connection:
        fields = {"status": "failed", "error": "crashed"}
        await runs.finish(connection, got, at, action="retrain.failed", reason="test", fields=fields)


async def test_failures_of_orders_by_hand_are_counted_and_delay_nothing(engine: AsyncEngine) -> None:
    laptop = Laptop(engine, SUNDAY - timedelta(days=6))
    await laptop.use()
    for second in range(3):
        await _failed(engine, "button", SUNDAY.timestamp() - 60 + second)

    standing = await read_standing(engine)
    assert (standing.failures, standing.error, standing.retry_at, standing.owed) == (3, "crashed", None, None)
    laptop.now = SUNDAY
    await laptop.process().check()
    assert laptop.triggers == ["cron"]


async def test_a_failed_run_of_an_alarm_is_made_again_long_before_the_next_sunday(engine: AsyncEngine) -> None:
    laptop = Laptop(engine, SUNDAY)
    await laptop.use()
    await _failed(engine, "drift", SUNDAY.timestamp())

    laptop.now = SUNDAY + timedelta(minutes=9)
    await laptop.process().check()
    assert laptop.triggers == []
    laptop.now = SUNDAY + timedelta(minutes=10)
    for _ in range(2):
        await laptop.process().check()
    assert laptop.triggers == ["drift"]


async def test_a_run_that_ends_its_process_every_time_is_resumed_ever_more_rarely(engine: AsyncEngine) -> None:
    laptop = Laptop(engine, SUNDAY - timedelta(days=6))
    await laptop.use()
    laptop.now, laptop.die = SUNDAY, True
    await laptop.process().check()
    starts: list[timedelta] = []
    while len(starts) < 4:
        laptop.now += timedelta(minutes=1)
        before = len(laptop.made)
        await laptop.process().check()
        if len(laptop.made) > before:
            starts.append(laptop.now - SUNDAY)

    # Two minutes of lease each, then no wait, ten, twenty and forty minutes.
    assert [at.total_seconds() / 60 for at in starts] == [2, 14, 36, 78]
    assert len(set(laptop.made)) == 1
