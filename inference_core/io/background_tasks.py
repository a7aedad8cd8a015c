"""Work next to the requests: background tasks of a process, and work on threads whose caller may leave.

A background task that fails is logged, started again after a pause, and shown in `/health`. Work on a thread asks
between its steps whether its result is still wanted.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
_ABANDONED: ContextVar[threading.Event | None] = ContextVar("abandoned", default=None)


class AbandonedWorkError(Exception):
    """The caller of the work has left."""


def require_wanted() -> None:
    """Raise AbandonedWorkError in work that `run_until` runs, once its event is set."""
    abandoned = _ABANDONED.get()
    if abandoned is not None and abandoned.is_set():
        raise AbandonedWorkError


def run_until(abandoned: threading.Event, work: Callable[[], T]) -> T:
    """Return the result of `work`. Raises AbandonedWorkError where the event was set before, or at the next look."""
    token = _ABANDONED.set(abandoned)
    try:
        require_wanted()
        return work()
    finally:
        _ABANDONED.reset(token)


log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.1, 30.0
# A task that has run for so long since it failed works again; a failure of work that is done once is shown as long.
STEADY_SECONDS = 60.0


class _Failed(msgspec.Struct):
    """The last failure of a task."""

    kind: str
    times: int
    at: float
    """When it began again, monotonic seconds."""


_failed: dict[str, _Failed] = {}


def repeated(work: Callable[[], Awaitable[object]], name: str) -> asyncio.Task[None]:
    """Start `work()` as a task that goes on until it is cancelled or returns. Where it raises, it is called again after
    a pause, which doubles with every failure in a row."""
    return asyncio.create_task(_again_and_again(work, name), name=name)


def once(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """Start `work` as a task that need not be awaited: it never raises, and is not repeated."""
    return asyncio.create_task(_noted(work, name), name=name)


def task_problems() -> dict[str, str]:
    """Return the tasks of this process that failed lately, by name, with the kind of error: texts may be in others."""
    now = time.monotonic()
    for name in [name for name, failed in _failed.items() if now - failed.at > STEADY_SECONDS]:
        del _failed[name]
    return {
        f"task {name}": f"failed ({failed.kind}), {failed.times} times in a row; the log has more"
        if failed.times > 1
        else f"failed ({failed.kind}); the log has more"
        for name, failed in _failed.items()
    }


async def _again_and_again(work: Callable[[], Awaitable[object]], name: str) -> None:
    pause, times = FIRST_PAUSE_SECONDS, 0
    try:
        while True:
            began = time.monotonic()
            try:
                await work()
            except asyncio.CancelledError as error:
                if is_cancelled():
                    raise
                failure: BaseException = error
            except Exception as error:
                if is_cancelled():
                    # What was awaited turned the cancellation into an error of its own, such as a time limit.
                    raise asyncio.CancelledError from error
                failure = error
            else:
                return
            if time.monotonic() - began > STEADY_SECONDS:
                pause, times = FIRST_PAUSE_SECONDS, 0
            times += 1
            _failed[name] = _Failed(type(failure).__name__, times, time.monotonic() + pause)
            log.error("the background task %r failed; it starts again in %g s", name, pause, exc_info=failure)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LAST_PAUSE_SECONDS)
    finally:
        _failed.pop(name, None)


async def _noted(work: Coroutine[Any, Any, None], name: str) -> None:
    try:
        await work
    except asyncio.CancelledError:
        if is_cancelled():
            raise
        log.exception("the background task %r was given up", name)
    except Exception as error:
        _failed[name] = _Failed(type(error).__name__, 1, time.monotonic())
        log.exception("the background task %r failed", name)


def is_cancelled() -> bool:
    """Whether the current task itself is cancelled, and not something that it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
