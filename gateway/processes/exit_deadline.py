"""Ends a process that should stop and cannot, since a thread of it waits for a disk or a name server that hangs.

The journal holds what was answered, so nothing is lost; the next process stores it.
"""

import logging
import os
import signal
import sys
import threading
from contextlib import suppress

log = logging.getLogger(__name__)

CLOSE_SECONDS = 14.0
"""How long a process may take to stop its parts after the last answer; what hangs has limits below this."""
THREADS_SECONDS = 3.0
"""How long it may then take to end."""


class ExitDeadline:
    """Ends the process `seconds` after `begin`, unless it has ended by itself."""

    def __init__(self) -> None:
        self.status = 1
        """The process's status then: set to 0 once all parts are stopped."""

    def begin(self, seconds: float) -> None:
        """Watch from now on, on a thread that does not keep the process alive. Call it on the main thread; the earliest
        end counts."""
        threading.Thread(target=self._watch, args=(seconds,), name="exit-deadline", daemon=True).start()
        # Python's threads are gone by the time that a library's own are waited for; the kernel's timer is not.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds + 1.0)

    def _watch(self, seconds: float) -> None:
        threading.Event().wait(seconds)
        waiting = sorted(thread.name for thread in threading.enumerate() if not thread.daemon)
        log.error("the process did not end by itself; ended by force. Threads that it waited for: %s", waiting)
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(self.status)
