"""Detects a thread stuck in a piece of work, reports where, and reports when it continues."""

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable

log = logging.getLogger(__name__)


class Watchdog:
    """Watches one thread, which calls `begin` and `end` around each piece of work.

    `report` gets a sentence once a piece has lasted for more than `limit_seconds`, and None when it has ended after
    all; the first is called on the watchdog's own thread, the second on the watched one. The watchdog's thread calls
    `check` periodically after `start`; `clock` gives seconds; `title` names the watched thread in logs.
    """

    def __init__(
        self,
        limit_seconds: float,
        report: Callable[[str | None], None],
        clock: Callable[[], float] = time.monotonic,
        title: str = "the core",
    ) -> None:
        self._limit_seconds = limit_seconds
        self._title = title
        self._report = report
        self._clock = clock
        self._lock = threading.Lock()
        self._began: float | None = None
        self._reported = False
        self._watched: int | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="aio-watchdog", daemon=True)

    def start(self) -> None:
        """Watch the calling thread from now on."""
        self._watched = threading.get_ident()
        self._thread.start()

    def stop(self) -> None:
        """Stop watching; returns when the watchdog's thread has ended."""
        self._over.set()
        self._thread.join()

    def begin(self) -> None:
        """Note that the watched thread begins a piece of work."""
        self._began = self._clock()

    def end(self) -> None:
        """Note that the piece of work has ended."""
        with self._lock:
            self._began = None
            if self._reported:
                self._reported = False
                log.warning("%s goes on", self._title)
                self._report(None)

    def check(self) -> None:
        """Report the current piece of work, once, if it has lasted too long."""
        with self._lock:
            if self._began is None or self._reported:
                return
            seconds = self._clock() - self._began
            if seconds <= self._limit_seconds:
                return
            self._reported = True
            reason = f"no step has finished for {seconds:.1f} s"
            log.error("%s is stuck: %s; it is at\n%s", self._title, reason, self._stack())
            self._report(reason)

    def _watch(self) -> None:
        while not self._over.wait(self._limit_seconds / 4):
            self.check()

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._watched or 0)
        return "".join(traceback.format_stack(frame)) if frame is not None else "(no frame)"
