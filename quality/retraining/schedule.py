"""The scheduled retraining job: a cron entry on APScheduler, made up for whenever its time has passed without a run."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

from inference_core.extras import MissingExtraError

# Imported where a schedule is made: a gateway without a monitor has none.
if TYPE_CHECKING:
    from apscheduler.schedulers.asyncio import AsyncIOScheduler
    from apscheduler.triggers.cron import CronTrigger

log = logging.getLogger(__name__)

WEEKLY = "0 3 * * 0"
CHECK_EVERY = timedelta(minutes=10)
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat", "sun")
_JOB = "retrain"
_RETRY = timedelta(days=1)

Run = Callable[[datetime], Awaitable[object]]
RunsKnownUntil = Callable[[], Awaitable[float | None]]


class CronError(ValueError):
    """The cron expression is invalid; the message shows the allowed form."""


class RetrainJob:
    """Calls `run` with the due time after each time of `cron` (minute hour day month weekday, UTC; 0 and 7 are Sunday),
    or never if empty (SPEC QM-06).

    `until` gives the epoch seconds before which nothing is due: the last run, before the first one the first record,
    or None without either. Whether a time has passed since then is checked at `start`, at the times of `cron` and every
    ten minutes, so a run is made up for after a downtime, after the sleep of a laptop and after another runner's death.
    Runs never overlap in this process; `RetrainRuns.acquire` makes each due run one over all processes.
    """

    def __init__(
        self,
        run: Run,
        until: RunsKnownUntil,
        cron: str = WEEKLY,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._run = run
        self._until = until
        self._clock = clock
        self._trigger = cron_trigger(cron) if cron.strip() else None
        self._scheduler: AsyncIOScheduler | None = None
        self._running: asyncio.Task[None] | None = None
        self._retry_at: datetime | None = None

    async def start(self) -> None:
        """Schedule, and check at once whether a run is due. Idempotent."""
        if self._trigger is None or self._scheduler is not None:
            return
        from apscheduler.schedulers.asyncio import AsyncIOScheduler

        self._scheduler = AsyncIOScheduler(timezone=UTC)
        # A check does no harm when it is late, however late it is.
        self._scheduler.configure(job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None})
        self._scheduler.add_job(self.check, self._trigger, id=_JOB)
        # The scheduler's timers stand still while a computer sleeps; this one is then at most ten minutes late.
        every = CHECK_EVERY.total_seconds()
        self._scheduler.add_job(self.check, "interval", seconds=every, next_run_time=datetime.now(UTC))
        self._scheduler.start()

    async def close(self) -> None:
        """Unschedule, and cancel a running run. Idempotent."""
        if self._scheduler is not None:
            self._scheduler.shutdown(wait=False)
            self._scheduler = None
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
        if self._running is not None or (self._retry_at is not None and self._clock() < self._retry_at):
            return
        self._running = asyncio.current_task()
        try:
            due = await self._due()
            if due is not None:
                await self._run(due)
        except MissingExtraError:
            pass  # the run's row and its line in the log say what to install
        except Exception:
            # A failed run has its own row and reason. One without a row stays due, but not for every check.
            log.exception("the scheduled retraining failed")
            self._retry_at = self._clock() + _RETRY
        finally:
            self._running = None

    async def _due(self) -> datetime | None:
        try:
            until = await self._until()
        except (SQLAlchemyError, OSError) as error:
            log.warning("whether a retraining is due is unknown (%s); it is checked again", type(error).__name__)
            return None
        if until is None or self._trigger is None:
            return None
        due = first_due(self._trigger, datetime.fromtimestamp(until, UTC), self._clock())
        if due is not None:
            log.info("the retraining of %s is due", due.isoformat(timespec="minutes"))
        return due


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
