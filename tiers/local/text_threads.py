"""Threads for long texts: rendering and encoding take up to seconds and must not block the event loop."""

import asyncio
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from inference_core.io.background_tasks import run_until
from inference_core.native.control_groups import usable_cpus

T = TypeVar("T")

MOST_THREADS = 8
# Idle time before `when_quiet` is called.
QUIET_SECONDS = 1.0


def usual_threads() -> int:
    """Return half of the processors, since the other half serves; at least two, so that no caller has all."""
    return min(max(usable_cpus(), 4) // 2, MOST_THREADS)


class TextThreads:
    """Runs at most `threads` pieces of work at once, and for one caller all but one; waiting callers take turns.

    So however many long texts a caller has, another caller waits only for the running ones. Belongs to one event loop.
    `when_quiet` is called on a thread after `QUIET_SECONDS` without work.
    """

    def __init__(self, threads: int | None = None, when_quiet: Callable[[], object] | None = None) -> None:
        self._threads = usual_threads() if threads is None else threads
        self._executor = ThreadPoolExecutor(self._threads, "text")
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._running: Counter[str] = Counter()
        self._when_quiet = when_quiet
        self._quiet: asyncio.TimerHandle | None = None

    @property
    def running(self) -> int:
        return self._running.total()

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    async def run(self, caller: str, work: Callable[[], T]) -> T:
        """Run `work` on a thread and return its result. Where the caller leaves, a running thread goes on until `work`
        looks whether it is wanted (`require_wanted`)."""
        if self._waiting or not self._may_begin(caller):
            await self._turn(caller)
        else:
            self._running[caller] += 1
        loop, abandoned = asyncio.get_running_loop(), threading.Event()

        def ended(_: Future[T]) -> None:
            with suppress(RuntimeError):  # The event loop has ended meanwhile.
                loop.call_soon_threadsafe(self._leave, caller)

        begun = self._executor.submit(run_until, abandoned, work)
        begun.add_done_callback(ended)
        try:
            return await asyncio.wrap_future(begun)
        except asyncio.CancelledError:
            abandoned.set()
            raise
        finally:
            # An error's traceback refers to this frame. Without a reference back, the texts in its frames end with it.
            del begun

    def close(self) -> None:
        """Accept no more work; running work ends by itself."""
        self._when_quiet = None
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _may_begin(self, caller: str) -> bool:
        return self.running < self._threads and self._running[caller] < max(self._threads - 1, 1)

    async def _turn(self, caller: str) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(turn)
        self._begin_waiting()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave(caller)
            raise

    def _leave(self, caller: str) -> None:
        self._running[caller] -= 1
        if not self._running[caller]:
            del self._running[caller]
        self._begin_waiting()
        if self._when_quiet is not None and not self._running and self._quiet is None:
            self._quiet = asyncio.get_running_loop().call_later(QUIET_SECONDS, self._clear)

    def _clear(self) -> None:
        self._quiet = None
        if self._when_quiet is not None and not self._running:
            self._executor.submit(self._when_quiet)

    def _begin_waiting(self) -> None:
        """Start waiting work of the callers that may start, the longest waiting first."""
        while (caller := next(filter(self._may_begin, self._waiting), None)) is not None:
            turns = self._waiting[caller]
            turn = turns.popleft()
            if turns:
                self._waiting.move_to_end(caller)
            else:
                del self._waiting[caller]
            if not turn.done():
                self._running[caller] += 1
                turn.set_result(None)
