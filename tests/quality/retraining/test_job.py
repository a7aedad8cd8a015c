"""The scheduled job: cron's weekdays, missed runs made up for, one run at a time."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from inference_core.extras import MissingExtraError
from quality.retraining.schedule import CronError, RetrainJob, cron_trigger, missed

MONDAY = datetime(2024, 1, 1, 12, 0, tzinfo=UTC)


def _next(expression: str, after: datetime = MONDAY) -> datetime:
    fire = cron_trigger(expression).get_next_fire_time(None, after)
    assert isinstance(fire, datetime)
    return fire


def test_zero_and_seven_are_sunday_as_in_cron() -> None:
    assert _next("0 3 * * 0") == datetime(2024, 1, 7, 3, 0, tzinfo=UTC)
    assert _next("0 3 * * 7") == datetime(2024, 1, 7, 3, 0, tzinfo=UTC)
    assert _next("0 3 * * sun") == datetime(2024, 1, 7, 3, 0, tzinfo=UTC)


def test_it_fires_once_a_week_by_a_fake_clock() -> None:
    fires, now = [], MONDAY
    for _ in range(4):
        now = _next("0 3 * * 0", now + timedelta(seconds=1))
        fires.append(now)

    assert {later - earlier for earlier, later in itertools.pairwise(fires)} == {timedelta(days=7)}


def test_ranges_steps_and_lists_of_weekdays_mean_what_cron_means() -> None:
    assert _next("0 0 * * 1-5", datetime(2024, 1, 6, tzinfo=UTC)).weekday() == 0
    assert _next("0 0 * * 5-7", datetime(2024, 1, 6, 1, tzinfo=UTC)).weekday() == 6
    assert _next("0 0 * * 2,4").weekday() == 1
    assert _next("0 0 * * */3", datetime(2024, 1, 1, tzinfo=UTC)).weekday() == 2


@pytest.mark.parametrize("expression", ["weekly", "0 3 * *", "99 3 * * 0", "0 3 * * 9", "0 3 * * x-y"])
def test_a_bad_expression_is_refused_with_an_example(expression: str) -> None:
    with pytest.raises(CronError, match=r"0 3 \* \* 0"):
        cron_trigger(expression)


def test_a_run_is_missed_only_if_one_was_due_since_the_last() -> None:
    trigger = cron_trigger("0 3 * * 0")
    last = datetime(2024, 1, 7, 3, 0, tzinfo=UTC)

    assert not missed(trigger, last, last + timedelta(days=6, hours=23))
    assert missed(trigger, last, last + timedelta(days=7))


@asynccontextmanager
async def _job(
    last: float | None, cron: str = "0 3 * * 0", failure: Exception | None = None
) -> AsyncIterator[tuple[RetrainJob, asyncio.Event]]:
    ran = asyncio.Event()

    async def run() -> None:
        ran.set()
        if failure is not None:
            raise failure

    async def last_run() -> float | None:
        return last

    job = RetrainJob(run, last_run, cron)
    await job.start()
    try:
        yield job, ran
    finally:
        await job.close()


async def test_a_run_missed_in_a_downtime_is_made_up_for() -> None:
    async with _job(last=(datetime.now(UTC) - timedelta(days=30)).timestamp()) as (_, ran):
        assert await asyncio.wait_for(ran.wait(), 10)


async def test_a_start_that_failed_can_be_tried_again_and_still_makes_up_for_a_missed_run() -> None:
    ran = asyncio.Event()
    answers = iter([ConnectionRefusedError("database away"), 0.0])

    async def run() -> None:
        ran.set()

    async def last_run() -> float | None:
        if isinstance(answer := next(answers), Exception):
            raise answer
        return answer

    job = RetrainJob(run, last_run)
    with pytest.raises(ConnectionRefusedError):
        await job.start()
    await job.start()
    try:
        await asyncio.wait_for(ran.wait(), 10)
    finally:
        await job.close()


async def test_a_first_start_waits_for_its_time() -> None:
    async with _job(last=None) as (job, ran):
        assert not ran.is_set()
        due = job.next_run()

    assert due is not None
    assert (due.weekday(), due.hour) == (6, 3)


async def test_a_failed_run_leaves_the_schedule_in_place() -> None:
    async with _job(last=None, failure=RuntimeError("no training today")) as (job, ran):
        job.fire_now()
        await asyncio.wait_for(ran.wait(), 10)

        assert job.next_run() is not None


async def test_a_run_that_lacks_packages_leaves_the_schedule_in_place_and_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with _job(last=None, failure=MissingExtraError("fitting", "train", "sklearn")) as (job, ran):
        job.fire_now()
        await asyncio.wait_for(ran.wait(), 10)

        assert job.next_run() is not None
    assert not [record for record in caplog.records if record.exc_info]


async def test_an_empty_expression_switches_the_job_off() -> None:
    async with _job(last=0.0, cron="") as (job, ran):
        assert job.next_run() is None
        assert not ran.is_set()
