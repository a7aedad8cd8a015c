"""The scheduled retraining job: a cron entry on APScheduler, made up for whenever its time has passed without a run."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

from inference_core.extras import MissingExtraError
from inference_core.io.background_tasks import repeated
from quality.retraining.runs import Owed, RetrainingStatus, Trigger, wait_after

# Imported where a schedule is made: a gateway without a monitor has none.
if TYPE_CHECKING:
    from apscheduler.schedulers.asyncio import AsyncIOScheduler
    from apscheduler.triggers.cron import CronTrigger

log = logging.getLogger(__name__)

WEEKLY = "0 3 * * 0"
CHECK_EVERY = timedelta(minutes=10)
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat", "sun")
_JOB = "retrain"

Run = Callable[[datetime, Trigger], Awaitable[object]]
ReadStanding = Callable[[], Awaitable[RetrainingStatus]]


class CronError(ValueError):
    """The cron expression is invalid; the message shows the allowed form."""


class RetrainJob:
    """Calls `run` with the due time after each time of `cron` (minute hour day month weekday, UTC; 0 and 7 are Sunday),
    not by time if empty, and for each run that is owed (SPEC QM-06).

    `standing` says what has been made, what failed and what was abandoned. It is read at `start`, at the times of
    `cron` and every ten minutes, so a run is made up for after a downtime, after the sleep of a laptop, after a failure
    (with back-off) and after another runner's death; without `cron` only those that gateways begin. Runs never overlap
    in this process; `RetrainRuns.acquire` makes each due run one over all processes.
    """

    def __init__(
        self,
        run: Run,
        standing: ReadStanding,
        cron: str = WEEKLY,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._run = run
        self._standing = standing
        self._clock = clock
        self._trigger = cron_trigger(cron) if cron.strip() else None
        self._scheduler: AsyncIOScheduler | None = None
        self._checking: asyncio.Task[None] | None = None
        self._running: asyncio.Task[None] | None = None
        self._failures = 0
        self._retry_at: datetime | None = None

    async def start(self) -> None:
        """Schedule, and check at once whether a run is due. Idempotent."""
        if self._scheduler is not None:
            return
        from apscheduler.schedulers.asyncio import AsyncIOScheduler

        self._scheduler = AsyncIOScheduler(timezone=UTC)
        # A check does no harm when it is late, however late it is.
        self._scheduler.configure(job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None})
        if self._trigger is not None:
            self._scheduler.add_job(self.check, self._trigger, id=_JOB)
        self._scheduler.start()
        self._checking = repeated(self._check_often, "checks of the retraining schedule")

    async def close(self) -> None:
        """Unschedule, and cancel a running run. Idempotent."""
        if self._scheduler is not None:
            self._scheduler.shutdown(wait=False)
            self._scheduler = None
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.gather(self._checking, return_exceptions=True)
            self._checking = None
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
            self._running = None

    def next_run(self) -> datetime | None:
        """The next scheduled time; None while not scheduled."""
        job = self._scheduler.get_job(_JOB) if self._scheduler is not None else None
        return job.next_run_time if job is not None else None

    async def check(self) -> None:
        """Run if a run is due. Never raises: the next check follows."""
        if self._running is not None or self._waits():
            return
        self._running = asyncio.current_task()
        try:
            owed = await self._owed()
            if owed is not None:
                await self._run(datetime.fromtimestamp(owed.due, UTC), owed.trigger)
                self._failures = 0
        except Exception as error:
            # A failed run has its own row, by which every process waits. One without a row is known here alone.
            if not isinstance(error, MissingExtraError):
                log.exception("the retraining (by schedule) failed")
            self._failures += 1
            self._retry_at = self._clock() + timedelta(seconds=wait_after(self._failures))
        finally:
            self._running = None

    async def _check_often(self) -> None:
        # The scheduler's timers stand still while a computer sleeps, and wait for a clock that jumped back to catch up.
        while True:
            await self.check()
            await asyncio.sleep(CHECK_EVERY.total_seconds())

    def _waits(self) -> bool:
        """Whether a failure is too recent. A clock that has jumped back waits no longer than one that has not."""
        if self._retry_at is None:
            return False
        return 0 < (self._retry_at - self._clock()).total_seconds() <= wait_after(self._failures)

    async def _owed(self) -> Owed | None:
        try:
            standing = await self._standing()
        except (SQLAlchemyError, OSError) as error:
            log.warning("whether a retraining is due is unknown (%s); it is checked again", type(error).__name__)
            return None
        owed = standing.owed
        if owed is None and not standing.under_way:
            owed = self._scheduled(standing)
        if owed is None or owed.at > self._clock().timestamp():
            return None
        if self._trigger is None and owed.trigger in ("cron", "cli"):
            return None
        due = datetime.fromtimestamp(owed.due, UTC)
        log.info("the retraining (%s) of %s is due", owed.trigger, due.isoformat(timespec="minutes"))
        return owed

    def _scheduled(self, standing: RetrainingStatus) -> Owed | None:
        if standing.known_until is None or self._trigger is None:
            return None
        due = first_due(self._trigger, datetime.fromtimestamp(standing.known_until, UTC), self._clock())
        if due is None:
            return None
        at = max(due.timestamp(), standing.retry_at or 0.0)
        return Owed(due=at, at=at, trigger="cron")


def cron_trigger(expression: str) -> "CronTrigger":
    """Return the trigger of a five-field cron expression in UTC. Raises `CronError`.

    APScheduler counts weekdays from Monday = 0, cron from Sunday = 0, so weekday numbers become names.
    """
    fields = expression.split()
    if len(fields) != 5:
        raise CronError(f"cron expression {expression!r} has {len(fields)} fields; it needs five, as in {WEEKLY!r}")
    from apscheduler.triggers.cron import CronTrigger

    minute, hour, day, month, weekday = fields
    try:
        return CronTrigger(
            minute=minute, hour=hour, day=day, month=month, day_of_week=_named_days(weekday), timezone=UTC
        )
    except (ValueError, IndexError) as error:
        raise CronError(f"cron expression {expression!r}: {error}; an example is {WEEKLY!r}") from error


def first_due(trigger: "CronTrigger", last: datetime, now: datetime) -> datetime | None:
    """Return the first time of `trigger` after `last`; None if that is after `now`."""
    due: datetime | None = trigger.get_next_fire_time(None, last + timedelta(microseconds=1))
    return due if due is not None and due <= now else None


def _named_days(weekday: str) -> str:
    if "/" in weekday or "-" in weekday:
        return ",".join(_DAYS[number] for number in _expanded(weekday))
    return ",".join(_DAYS[int(day)] if day.isdigit() else day for day in weekday.split(","))


def _expanded(weekday: str) -> list[int]:
    """Expand ranges and steps to numbers, because a range of names must not cross the end of the week."""
    numbers: list[int] = []
    for part in weekday.split(","):
        span, _, step = part.partition("/")
        first, _, last = ("0-6" if span == "*" else span).partition("-")
        low, high = _day_number(first), _day_number(last or first)
        numbers += range(low, high + 1, int(step or 1))
    return numbers


def _day_number(day: str) -> int:
    return int(day) if day.isdigit() else _DAYS.index(day.lower()[:3])
