"""One run of an engine program: started under its guard, its output collected, stopped with all that it started.

The output is a file of bounded size, and its last lines are for error messages. A model is downloaded in a process
of its own, which ends at once when AIO does.
"""

import asyncio
import logging
import os
import re
import signal
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from gateway.base.configuration import own_command
from gateway.runtime.engines.child_guard import GUARD_FILE
from inference_core.loaders.hub_model import Form, HubModel, downloaded


class EngineProblem(Exception):
    """The engine cannot be started or has failed; the message says why, and what to do if something can be done."""


log = logging.getLogger(__name__)

MAX_BYTES = 4 * 2**20
"""Of the file; when it is full it becomes `NAME.log.1`, in place of the one before."""
LAST_LINES = 20
LONGEST_LINE = 500
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_ENDS = re.compile(rb"[\r\n]+")


class EngineLog:
    """Appends to `path`. A disk that is full loses lines and stops nothing."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self.path, self._max_bytes = path, max_bytes
        self._file: BinaryIO | None = None
        self._size = 0
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        self._rest = b""

    def write(self, piece: bytes) -> None:
        """Add output as it comes, in pieces of any length."""
        *lines, rest = _ENDS.split(self._rest + piece)
        self._rest = rest[-2 * LONGEST_LINE :]
        self._lines.extend(filter(None, map(_printable, lines)))
        try:
            self._append(piece)
        except OSError as error:
            log.debug("%s: %s", self.path, error)

    def last_lines(self, count: int = LAST_LINES) -> list[str]:
        """Return the last lines, without control characters, each of bounded length."""
        rest = _printable(self._rest)
        return [*self._lines, *([rest] if rest else [])][-count:]

    def forget_lines(self) -> None:
        """Start a new run: the lines of the one before explain nothing of it."""
        self._lines.clear()
        self._rest = b""

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _append(self, piece: bytes) -> None:
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file = self.path.open("ab", buffering=0)
            self._size = self._file.tell()
        if self._size + len(piece) > self._max_bytes:
            self.close()
            self.path.replace(self.path.with_name(f"{self.path.name}.1"))
            self._file = self.path.open("ab", buffering=0)
            self._size = 0
        self._file.write(piece)
        self._size += len(piece)


def _printable(line: bytes) -> str:
    """Return the text of a line: colours and other control sequences must not reach a terminal or a log."""
    text = _ESCAPES.sub("", line[:LONGEST_LINE].decode(errors="replace"))
    return "".join(character if character.isprintable() else "�" for character in text).strip()


_PIECE = 1 << 16
# Beyond the grace period: the time in which the guard kills what is left.
_MARGIN_SECONDS = 5.0


class EngineChild:
    """A running program. `ended` is done, with its exit status, once it and all that it started are gone."""

    def __init__(self, process: asyncio.subprocess.Process, log: EngineLog, grace_seconds: float) -> None:
        self._process, self._grace_seconds = process, grace_seconds
        self.ended = asyncio.ensure_future(self._run(process, log))

    @classmethod
    async def start(
        cls, command: Sequence[str], environment: Mapping[str, str], log: EngineLog, grace_seconds: float
    ) -> "EngineChild":
        """Start `command`, without a shell; after a SIGTERM it gets `grace_seconds`."""
        process = await asyncio.create_subprocess_exec(
            *[sys.executable, "-I", "-S", GUARD_FILE, str(os.getpid()), str(grace_seconds), *command],
            env=dict(environment),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            # A terminal's Ctrl-C must reach only AIO, which stops things in order.
            start_new_session=True,
        )
        return cls(process, log, grace_seconds)

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """End it without a grace period; `stop` still waits for that."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)

    async def stop(self) -> int:
        """End it: SIGTERM to its whole process group, SIGKILL after the grace period. Return the exit status.

        A caller that is cancelled meanwhile still waits for the end.
        """
        stopping = asyncio.ensure_future(self._stop())
        try:
            return await asyncio.shield(stopping)
        except asyncio.CancelledError:
            await stopping
            raise

    async def _stop(self) -> int:
        if self._process.stdin is not None:
            self._process.stdin.close()
        done, _ = await asyncio.wait({self.ended}, timeout=self._grace_seconds + _MARGIN_SECONDS)
        if not done:
            # The guard itself hangs, for example stopped by a debugger: the kernel kills the program with it.
            with suppress(ProcessLookupError):
                self._process.kill()
        return await self.ended

    @staticmethod
    async def _run(process: asyncio.subprocess.Process, log: EngineLog) -> int:
        assert process.stdout is not None
        while piece := await process.stdout.read(_PIECE):
            log.write(piece)
        return await process.wait()


_SAY_EVERY_SECONDS = 1.0


async def pull_model(model: HubModel, form: Form, log: EngineLog, say: Callable[[str], None]) -> str:
    """Return the path of the model's files, downloaded as by `aio models pull` if needed. Raises `EngineProblem`."""
    if (path := downloaded(model)) is not None:
        return str(path)
    say(f"the model {model} is looked up")
    log.forget_lines()
    command = own_command("models", "pull", "--form", form, f"hf:{model}")
    child = await EngineChild.start(command, {**os.environ, "PYTHONUNBUFFERED": "1"}, log, grace_seconds=1.0)
    try:
        while not (await asyncio.wait({child.ended}, timeout=_SAY_EVERY_SECONDS))[0]:
            if lines := log.last_lines(1):
                say(lines[0])
    finally:
        await child.stop()
    path = downloaded(model)
    if path is None:
        lines = log.last_lines(1)
        raise EngineProblem(lines[0].removeprefix("Error: ") if lines else f"the download of {model} failed")
    return str(path)
