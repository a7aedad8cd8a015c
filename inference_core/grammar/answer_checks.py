"""Validates finished answers in processes of their own, within limits of time and memory."""

import atexit
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache

from inference_core.grammar.limits import LIMITS, Limits
from inference_core.grammar.wire import Channel, Check, Checked, handed_over, launched

PROGRAM = (sys.executable, "-m", "inference_core.grammar.check_server")
# To start Python and read the modules, on a busy machine.
_START_SECONDS = 30.0


class AnswerChecks:
    """Starts the server of checks when it is first needed, and again after its end. Thread-safe."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def start(self) -> None:
        """Start the server if it does not run, without waiting until it is ready."""
        with self._lock, suppress(OSError, subprocess.SubprocessError):
            self._require_server()

    def error(self, pairs: Sequence[tuple[str, str]]) -> tuple[int, str] | None:
        """Validate texts against JSON schemas, given as pairs of schema and text; blocks.

        Returns the place of a text that is not valid, or that could not be checked, and why; None if all are valid.
        """
        try:
            channel = self._channel()
            channel.send(Check(list(pairs), self._limits))
            answer = channel.receive(time.monotonic() + _START_SECONDS + 10 * self._limits.check_seconds)
        except TimeoutError:
            return 0, "it cannot be checked: the machine is too busy"
        except (OSError, subprocess.SubprocessError) as error:
            return 0, f"it cannot be checked: no process for it starts ({error})"
        except EOFError:
            return 0, "it cannot be checked within the limits of time and memory"
        assert isinstance(answer, Checked)
        return None if answer.error is None else (answer.place, answer.error)

    def close(self) -> None:
        """End the server; checks that run end by themselves."""
        with self._lock:
            process, self._process = self._process, None
            if process is not None:
                process.kill()
                process.wait()
            if self._control is not None:
                self._control.close()

    def _channel(self) -> Channel:
        with self._lock:
            return handed_over(self._require_server(), b"c")

    def _require_server(self) -> socket.socket:
        """The control socket of a running server."""
        if self._control is not None:
            if self._process is not None and self._process.poll() is None:
                return self._control
            self._control.close()
        self._control, self._process = launched(PROGRAM)
        return self._control


@cache
def _checks_of(process_id: int) -> AnswerChecks:
    checks = AnswerChecks()
    atexit.register(checks.close)
    return checks


def own_checks() -> AnswerChecks:
    """This process's server of checks."""
    return _checks_of(os.getpid())
