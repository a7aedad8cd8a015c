"""The scheduled retraining job: one cron entry on APScheduler; missed runs are made up for, and runs never overlap."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.cron import CronTrigger

from inference_core.extras import MissingExtraError

log = logging.getLogger(__name__)

WEEKLY = "0 3 * * 0"
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat", "sun")
_JOB = "retrain"
_GRACE = timedelta(days=1)

Run = Callable[[], Awaitable[object]]
LastRun = Callable[[], Awaitable[float | None]]


class CronError(ValueError):
    """The cron expression is invalid; the message shows the allowed form."""


class RetrainJob:
    """Calls `run` at the times of `cron` (minute hour day month weekday, UTC; 0 and 7 are Sunday), or never if empty.

    `last_run` gives the epoch seconds of the last scheduled run: a run that was due while no process was up starts at
    `start`. Runs never overlap in this process; the lease of `retrain` prevents overlap between processes.
    """

    def __init__(self, run: Run, last_run: LastRun, cron: str = WEEKLY) -> None:
        self._run = run
        self._last_run = last_run
        self._trigger = cron_trigger(cron) if cron.strip() else None
        self._scheduler: AsyncIOScheduler | None = None
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Schedule, and run at once if a run was missed. Idempotent."""
        if self._trigger is None or self._scheduler is not None:
            return
        # Do this first, so that a failed start can be repeated.
        last = await self._last_run()
        self._scheduler = AsyncIOScheduler(timezone=UTC)
        self._scheduler.add_job(
            self._fire,
            self._trigger,
            id=_JOB,
            coalesce=True,
            max_instances=1,
            misfire_grace_time=int(_GRACE.total_seconds()),
        )
        self._scheduler.start()
        if last is not None and missed(self._trigger, datetime.fromtimestamp(last, UTC), datetime.now(UTC)):
            log.info("a scheduled retraining was missed while nothing ran; it starts now")
            self.fire_now()

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
        """The time of the next run; None while not scheduled."""
        job = self._scheduler.get_job(_JOB) if self._scheduler is not None else None
        return job.next_run_time if job is not None else None

    def fire_now(self) -> None:
        """Run now instead of at the next scheduled time."""
        if self._scheduler is None:
            raise RuntimeError("the retraining job is not scheduled; call start() first")
        self._scheduler.modify_job(_JOB, next_run_time=datetime.now(UTC))

    async def _fire(self) -> None:
        self._running = asyncio.current_task()
        try:
            await self._run()
        except MissingExtraError:
            pass  # the run's row and its line in the log say what to install
        except Exception:
            # A failed run has its own row and reason; the schedule continues.
            log.exception("the scheduled retraining failed")
        finally:
            self._running = None


def cron_trigger(expression: str) -> CronTrigger:
    """Return the trigger of a five-field cron expression in UTC. Raises `CronError`.

    APScheduler counts weekdays from Monday = 0, cron from Sunday = 0, so weekday numbers become names.
    """
    fields = expression.split()
    if len(fields) != 5:
        raise CronError(f"cron expression {expression!r} has {len(fields)} fields; it needs five, as in {WEEKLY!r}")
    minute, hour, day, month, weekday = fields
    try:
        return CronTrigger(
            minute=minute, hour=hour, day=day, month=month, day_of_week=_named_days(weekday), timezone=UTC
        )
    except (ValueError, IndexError) as error:
        raise CronError(f"cron expression {expression!r}: {error}; an example is {WEEKLY!r}") from error


def missed(trigger: CronTrigger, last: datetime, now: datetime) -> bool:
    """Return whether `trigger` should have fired after `last` and before `now`."""
    due = trigger.get_next_fire_time(None, last + timedelta(seconds=1))
    return due is not None and due <= now


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
