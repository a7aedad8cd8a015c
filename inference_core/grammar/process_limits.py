"""Limits of a process that works on what callers wrote: they end it anywhere, even inside a library."""

import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from inference_core.grammar.limits import Limits

NICENESS = 10
"""Of work that no step waits for."""


def set_limits(limits: Limits) -> None:
    """Limit stack and memory of this process, and leave no core file."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_STACK)
    with suppress(ValueError):  # the system's own limit is lower
        resource.setrlimit(resource.RLIMIT_STACK, (limits.stack_bytes, most))
    with suppress(OSError):  # no such file system: the platform does not enforce the limit either
        Path("/proc/self/oom_score_adj").write_text("500")  # have the kernel kill this process before the serving one
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        size = pages * resource.getpagesize() + limits.memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (size, size))


def allow(seconds: float) -> float:
    """End the process after `seconds` more CPU time; 0: no limit. Returns what is left of the previous limit."""
    return signal.setitimer(signal.ITIMER_PROF, seconds)[0]


def at_low_priority(work: Callable[[], bool], limits: Limits) -> bool:
    """Return what `work` returns, False if it raises. It runs after the threads of the serving process where these need
    the processors.

    It runs on a thread, because a priority that was lowered cannot be raised again, and Linux has one for each thread.
    Elsewhere the priority is unchanged.
    """
    results: list[bool] = []

    def lowered() -> None:
        if sys.platform == "linux":
            os.nice(NICENESS)
        results.append(work())

    threading.stack_size(limits.stack_bytes)
    thread = threading.Thread(target=lowered)
    thread.start()
    thread.join()
    return bool(results) and results[0]


def leave_group() -> None:
    """Give this process a group of its own: it ends with the serving process, which may still finish answers after a
    signal to the process group."""
    if os.getpgrp() != os.getpid():
        os.setpgrp()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
