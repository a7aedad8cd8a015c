"""How many answers a process gives at once, and who waits or is sent away when more are asked for (SPEC GW-12)."""

import asyncio
import heapq
import itertools
import time
from collections import Counter
from collections.abc import Callable
from typing import Literal, NamedTuple

from gateway.base.errors import ApiError

# How fast the mean duration of answers follows: about the last twenty count.
FOLLOWING = 0.05

# Why a request was sent away: no room for the newcomer, its room went to a more urgent one, the process ends, or its
# record would find no room.
ShedReason = Literal["full", "displaced", "shutdown", "journal"]
JOURNAL_RETRY_SECONDS = 5.0


class _Waiting(NamedTuple):
    """One request in the queue; lower goes first: the class (0 is the most urgent), then who came before."""

    priority: int
    number: int
    turn: asyncio.Future[None]


class OverloadQueue:
    """At most `in_flight` answers at once, and at most `waiting` requests behind them, the most urgent class first.

    Where the queue is full somebody is sent away with a 503 and the time to come back: the least urgent, and of these
    the newest, be it the newcomer or one who waits. So a flood of one class costs a more urgent one nothing but the
    answers that are under way. `journal_full`: whether so many records wait for the disk that newcomers are sent away.
    `shed`: how many were sent away, by class and reason. Belongs to one event loop.
    """

    def __init__(self, in_flight: int, waiting: int, journal_full: Callable[[], bool] = lambda: False) -> None:
        self.running = 0
        self.shed: Counter[tuple[int, ShedReason]] = Counter()
        self._in_flight, self._room, self._journal_full = in_flight, waiting, journal_full
        self._queue: list[_Waiting] = []
        self._numbers = itertools.count()
        self._mean_seconds: float | None = None
        self._closed = False

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._queue)

    async def enter(self, priority: int) -> float:
        """Wait for a place; the time of entry, monotonic seconds, which `leave` wants. Raises `ApiError` 503."""
        if self._journal_full():
            self.shed[priority, "journal"] += 1
            raise ApiError(
                503,
                "The disk does not answer, and the records of earlier requests fill the memory that they may wait in. "
                "Try again later.",
                code="journal_full",
                retry_after_seconds=JOURNAL_RETRY_SECONDS,
            )
        if self.running < self._in_flight and not self._queue:
            self.running += 1
            return time.monotonic()
        await self._wait(priority)
        return time.monotonic()

    def leave(self, entered: float, *, answered: bool) -> None:
        """Give a place back; how long an answer took tells how long others will wait."""
        if answered:
            seconds = time.monotonic() - entered
            mean = seconds if self._mean_seconds is None else self._mean_seconds
            self._mean_seconds = mean + FOLLOWING * (seconds - mean)
        self.running -= 1
        self._let_in()

    def predicted_wait(self, priority: int) -> float:
        """Seconds until a request of this class that comes now would get its place."""
        if self.running < self._in_flight and not self._queue:
            return 0.0
        ahead = sum(one.priority <= priority for one in self._queue)
        return (self._mean_seconds or 0.0) * (ahead + 1) / self._in_flight

    def close(self) -> None:
        """Send everybody away who waits, now and later: the process ends."""
        self._closed = True
        for one in self._queue:
            if not one.turn.done():
                one.turn.set_exception(self.shutting_down(one.priority))
        self._queue.clear()

    def shutting_down(self, priority: int) -> ApiError:
        """The error of a request that is shed because the process ends; counts it."""
        self.shed[priority, "shutdown"] += 1
        return ApiError(503, "The server is shutting down. Send the request elsewhere.", code="shutting_down")

    async def _wait(self, priority: int) -> None:
        if self._closed:
            raise self.shutting_down(priority)
        if len(self._queue) >= self._room:
            self._make_room(priority)
        mine = _Waiting(priority, next(self._numbers), asyncio.get_running_loop().create_future())
        heapq.heappush(self._queue, mine)
        try:
            await mine.turn
        except asyncio.CancelledError:
            if mine in self._queue:
                self._queue.remove(mine)
                heapq.heapify(self._queue)
            elif mine.turn.done() and not mine.turn.cancelled() and mine.turn.exception() is None:
                # The place was given to a request that is gone.
                self.running -= 1
                self._let_in()
            raise

    def _make_room(self, priority: int) -> None:
        """Send the least urgent, newest one away. Raises if that is the newcomer."""
        last = max(self._queue, default=None)
        if last is None or priority >= last.priority:
            raise self._refusal(priority, "full")
        self._queue.remove(last)
        heapq.heapify(self._queue)
        if not last.turn.done():
            last.turn.set_exception(self._refusal(last.priority, "displaced"))

    def _let_in(self) -> None:
        while self._queue and self.running < self._in_flight:
            one = heapq.heappop(self._queue)
            if not one.turn.done():
                self.running += 1
                one.turn.set_result(None)

    def _refusal(self, priority: int, reason: ShedReason) -> ApiError:
        self.shed[priority, reason] += 1
        return ApiError(
            503,
            f"The server is full: {self.running} answers are under way and {len(self._queue)} requests wait. Try again "
            "later, or with a more urgent service_tier.",
            code="overloaded",
            retry_after_seconds=self.predicted_wait(priority),
        )
