"""A process that is restarted whenever it ends, with its output passed on line by line."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

from gateway.base.configuration import own_command
from gateway.base.stores.retries import RestartPauses

log = logging.getLogger(__name__)

_LONGEST_LINE = 1 << 16


class ProcessEndedError(RuntimeError):
    """A process ended before it was ready; its earlier output says why."""


class KeptProcess:
    """Runs `aio ARGUMENTS`, restarted by `keep` until `stop`; while `must_not_end` is set, its end is an error.

    One that is `outdated` is not restarted: another has taken its place.

    Its standard input is a pipe that is never written to; when it closes, the process knows that its supervisor is
    gone.
    """

    def __init__(
        self, name: str, arguments: Sequence[str], environment: Mapping[str, str], descriptors: Sequence[int] = ()
    ) -> None:
        self.name = name
        self.must_not_end = True
        self.outdated = False
        self._command = own_command(*arguments)
        self._environment = dict(environment)
        self._descriptors = tuple(descriptors)
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """The pid of the running process; None between two."""
        return None if self._process is None else self._process.pid

    async def keep(self) -> None:
        """Start the process, and restart it whenever it ends. Raises `ProcessEndedError` if it must not end."""
        pauses = RestartPauses()
        while not self._stopping.is_set():
            pauses.note_start()
            status = await self._run()
            if self._stopping.is_set() or self.outdated:
                return
            if self.must_not_end:
                raise ProcessEndedError(f"{self.name} ended with status {status} before it was ready; see above")
            delay = pauses.after_end()
            log.error("%s ended with status %s and is restarted in %g s", self.name, status, delay)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay)

    async def stop(self, seconds: float, number: signal.Signals = signal.SIGTERM) -> bool:
        """Stop it: signal `number`, and after `seconds` SIGKILL. Returns whether it ended by itself."""
        self._stopping.set()
        if (process := self._process) is None:
            return True
        self.send(number)
        try:
            async with asyncio.timeout(seconds):
                await process.wait()
        except TimeoutError:
            log.error("%s did not end within %g s and is killed", self.name, seconds)
            self.kill()
            await process.wait()
            return False
        return True

    def kill(self) -> None:
        """End it at once."""
        self.send(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it runs."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _run(self) -> int:
        process = await asyncio.create_subprocess_exec(
            *self._command,
            env={**os.environ, **self._environment, "PYTHONUNBUFFERED": "1"},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=self._descriptors,
            # A terminal's Ctrl-C must reach only the supervisor, which drains in order.
            start_new_session=True,
        )
        self._process = process
        assert process.stdout is not None
        assert process.stderr is not None
        log.info("%s is process %d", self.name, process.pid)
        try:
            await asyncio.gather(self._pass_on(process.stdout, sys.stdout), self._pass_on(process.stderr, sys.stderr))
            return await process.wait()
        finally:
            self._process = None

    async def _pass_on(self, output: asyncio.StreamReader, target: TextIO) -> None:
        """Pass on every line with the process's name in front."""
        rest = b""
        while piece := await output.read(_LONGEST_LINE):
            *lines, rest = (rest + piece).split(b"\n")
            if len(rest) > _LONGEST_LINE:
                lines, rest = [*lines, rest], b""
            self._write(lines, target)
        if rest:
            self._write([rest], target)

    def _write(self, lines: list[bytes], target: TextIO) -> None:
        for line in lines:
            # A line of JSON stays valid JSON.
            name = "" if line.startswith(b"{") else f"[{self.name}] "
            target.write(f"{name}{line.decode(errors='replace')}\n")
        target.flush()
