"""One run of an engine program: started under its guard, its output collected, stopped with all that it started."""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from gateway.runtime.engines.child_guard import GUARD_FILE
from gateway.runtime.engines.engine_log import EngineLog

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
        """Process id of the guard."""
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
