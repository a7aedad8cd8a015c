"""The scheduled job: cron's weekdays, missed runs made up for, one run at a time."""

import asyncio
import itertools
from datetime import UTC, datetime, timedelta, tzinfo

import apscheduler.schedulers.base
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_core.extras import MissingExtraError
from quality.retraining import schedule
from quality.retraining.runs import Owed, RetrainingStatus, Trigger, wait_after
from quality.retraining.schedule import CronError, RetrainJob, cron_trigger, first_due

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


def test_a_run_is_due_from_the_first_time_after_the_last_run() -> None:
    trigger = cron_trigger("0 3 * * 0")
    sunday = datetime(2024, 1, 7, 3, 0, tzinfo=UTC)

    assert first_due(trigger, sunday, sunday + timedelta(days=6, hours=23)) is None
    assert first_due(trigger, sunday, sunday + timedelta(days=30)) == sunday + timedelta(days=7)
    assert first_due(trigger, sunday - timedelta(seconds=0.5), sunday) == sunday


class Counted:
    """A job at `now` whose last run was at `last`; `due`: the due times of its runs, all of which end in `failure`."""

    def __init__(
        self, last: datetime | Exception | None, cron: str = "0 3 * * 0", failure: Exception | None = None
    ) -> None:
        self.last, self.failure, self.now = last, failure, MONDAY
        self.due: list[datetime] = []
        self.ran = asyncio.Event()
        self.standing = RetrainingStatus()
        self.job = RetrainJob(self._run, self._read, cron, clock=lambda: self.now)

    async def _run(self, due: datetime, trigger: str) -> None:
        self.due.append(due)
        self.ran.set()
        if self.failure is not None:
            raise self.failure

    async def _read(self) -> RetrainingStatus:
        if isinstance(self.last, Exception):
            raise self.last
        known = None if self.last is None else self.last.timestamp()
        return msgspec.structs.replace(self.standing, known_until=known)


async def test_a_run_missed_in_a_downtime_is_made_up_for_at_the_start() -> None:
    counted = Counted(MONDAY - timedelta(days=30))
    await counted.job.start()
    try:
        await asyncio.wait_for(counted.ran.wait(), 120)
        due = counted.job.next_run()
    finally:
        await counted.job.close()

    assert counted.due == [datetime(2023, 12, 3, 3, 0, tzinfo=UTC)]
    assert due is not None
    assert (due.weekday(), due.hour) == (6, 3)


async def test_nothing_is_due_before_the_first_record() -> None:
    counted = Counted(None)
    await counted.job.check()

    assert counted.due == []


async def test_a_check_without_the_database_is_repeated() -> None:
    counted = Counted(ConnectionRefusedError("database away"))
    await counted.job.check()
    assert counted.due == []

    counted.last = MONDAY - timedelta(days=30)
    await counted.job.check()
    assert len(counted.due) == 1


async def test_runs_that_fail_without_a_row_are_tried_again_after_waits_that_double() -> None:
    counted = Counted(MONDAY - timedelta(days=30), failure=PermissionError("the registry is read-only"))
    for wait in (10, 20, 40):
        await counted.job.check()
        made = len(counted.due)
        counted.now += timedelta(minutes=wait, seconds=-1)
        await counted.job.check()
        assert len(counted.due) == made
        counted.now += timedelta(seconds=1)

    await counted.job.check()
    assert len(counted.due) == 4


@pytest.mark.parametrize("days", [-1, 1])
async def test_a_clock_that_jumps_by_a_day_delays_no_run_that_is_owed(
    days: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """APScheduler's own clock jumps, too, while the job looks for what is owed."""
    jump = timedelta()

    class Jumping(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime.now(tz) + jump

    monkeypatch.setattr(apscheduler.schedulers.base, "datetime", Jumping)
    monkeypatch.setattr(schedule, "CHECK_EVERY", timedelta(milliseconds=5))
    counted = Counted(None)
    counted.now = datetime.now(UTC)
    await counted.job.start()
    try:
        jump = timedelta(days=days)
        counted.now += jump
        at = counted.now.timestamp()
        counted.standing = RetrainingStatus(owed=Owed(due=at, at=at, trigger="drift"))
        await asyncio.wait_for(counted.ran.wait(), 120)
    finally:
        await counted.job.close()

    assert counted.due[0].timestamp() == pytest.approx(at, abs=1e-3)


async def test_a_failure_is_waited_for_no_longer_because_the_clock_jumped_back() -> None:
    counted = Counted(MONDAY - timedelta(days=30), failure=PermissionError("the registry is read-only"))
    await counted.job.check()
    counted.now -= timedelta(days=1)
    await counted.job.check()
    assert len(counted.due) == 2
    counted.now += timedelta(minutes=19)
    await counted.job.check()
    assert len(counted.due) == 2, "the second wait is as long as ever"


@given(st.integers(1, 10_000))
def test_the_wait_after_failures_doubles_from_ten_minutes_up_to_a_day(failures: int) -> None:
    assert wait_after(failures) == min(600 * 2 ** (failures - 1), 86_400)


async def test_a_run_that_lacks_packages_leaves_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    counted = Counted(MONDAY - timedelta(days=30), failure=MissingExtraError("fitting", "train", "sklearn"))
    await counted.job.check()

    assert len(counted.due) == 1
    assert not [record for record in caplog.records if record.exc_info]


async def test_an_empty_expression_switches_the_job_off() -> None:
    counted = Counted(MONDAY - timedelta(days=30), cron="")
    await counted.job.start()
    await counted.job.check()

    assert counted.job.next_run() is None
    assert counted.due == []
    await counted.job.close()


async def test_without_a_schedule_only_runs_that_gateways_begin_are_made_again() -> None:
    counted = Counted(MONDAY - timedelta(days=30), cron="")
    at = MONDAY.timestamp()
    triggers: tuple[Trigger, ...] = ("cron", "cli", "drift", "button")
    for trigger in triggers:
        counted.standing = RetrainingStatus(owed=Owed(due=at, at=at, trigger=trigger))
        await counted.job.check()

    assert len(counted.due) == 2
