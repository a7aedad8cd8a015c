"""Runs one program and ends it, with every process that it started, once its own standard input closes.

A program of its own (`python -I child_guard.py PARENT GRACE_SECONDS PROGRAM ARGUMENT…`), which needs only the standard
library: the kernel closes the pipe however AIO ends, also by SIGKILL. SIGTERM has the same effect as the closed pipe;
SIGINT skips the grace period. Its exit status is the program's, or 128 plus the number of the signal that ended it.

On Linux, processes that the program leaves behind are adopted by this one, so that none outlives it; if this one is
killed itself, the kernel kills the program.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
GUARD_FILE = __file__
_NOT_STARTED = 127


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


class Guard:
    """The program and its descendants."""

    def __init__(self, command: list[str]) -> None:
        # A session of its own, so that a terminal's Ctrl-C reaches only AIO, which stops things in order.
        self._program = subprocess.Popen(  # noqa: S603 - a list from the catalogue, no shell
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=lambda: _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
        )

    def status(self) -> int | None:
        """The program's exit status; None while it runs. Adopted processes that ended are reaped."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                self._note(*ended)
        code = self._program.returncode
        return code if code is None or code >= 0 else 128 - code

    def _note(self, pid: int, status: int) -> None:
        if pid == self._program.pid:
            self._program.returncode = os.waitstatus_to_exitcode(status)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the program's process group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._program.pid, number)

    def end_all(self) -> None:
        """Kill the program and everything that it started, and wait until none is left."""
        self.signal(signal.SIGKILL)
        while True:
            for child in _children():
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(child, signal.SIGKILL)
            try:
                # Orphans of a killed child become children of this process and are killed in the next round.
                self._note(*os.waitpid(-1, 0))
            except ChildProcessError:
                return


def _children() -> list[int]:
    if sys.platform != "linux":
        return []
    with suppress(OSError):
        return [int(pid) for pid in Path("/proc/thread-self/children").read_text().split()]
    return []


def main(parent: int, grace_seconds: float, command: list[str]) -> int:
    """Run `command` until it ends or this process is asked to end it; return its status."""
    asked: list[int] = []
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, frame: asked.append(received))
    signal.signal(signal.SIGCHLD, lambda received, frame: None)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        return _NOT_STARTED
    try:
        guard = Guard(command)
    except OSError as error:
        print(f"{command[0]} cannot be started: {error}", flush=True)
        return _NOT_STARTED
    watched = [reader, 0]
    deadline: float | None = None
    while guard.status() is None:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select(watched, [], [], left)
        if reader in ready:
            os.read(reader, 4096)
        if 0 in ready and not os.read(0, 4096):
            watched.remove(0)
            asked.append(signal.SIGTERM)
        if deadline is None and asked:
            deadline = time.monotonic() + grace_seconds
            guard.signal(signal.SIGTERM)
        if deadline is not None and (time.monotonic() >= deadline or signal.SIGINT in asked):
            break
    guard.end_all()
    return guard.status() or 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
