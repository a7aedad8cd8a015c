"""Limits of a process that works on what callers wrote: they end it anywhere, even inside a library."""

import os
import resource
import signal
from contextlib import suppress
from pathlib import Path

from inference_core.grammar.limits import Limits


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


def leave_group() -> None:
    """Give this process a session of its own: it ends with the serving process, which may still finish answers after a
    signal to the process group."""
    if os.getpgrp() != os.getpid():
        os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
