"""Starts the ranks of one machine as processes and ends them together; names the machines of a mesh."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from inference_core.errors import RankLostError
from inference_core.parallel.mesh import RankEnvironment

LOOPBACK = "127.0.0.1"
PROGRAM = (sys.executable, "-m", "inference_core.parallel")
_GRACE_SECONDS = 10.0


class LocalRanks:
    """Processes of this machine's ranks. They end when their leader ends; `close` makes sure of it."""

    def __init__(self, environments: Sequence[RankEnvironment], arguments: Sequence[str] = ()) -> None:
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        try:
            for each in environments:
                variables = os.environ | each.variables()
                # Without a name service, gloo cannot tell which address is this machine's.
                if each.master == LOOPBACK:
                    variables.setdefault("GLOO_SOCKET_IFNAME", "lo")
                self._processes[each.rank] = subprocess.Popen([*PROGRAM, *arguments], env=variables)  # noqa: S603
        except BaseException:
            self.close(grace_seconds=0)
            raise

    @property
    def processes(self) -> dict[int, "subprocess.Popen[bytes]"]:
        return dict(self._processes)

    def check(self) -> None:
        """Raises RankLostError if a process has ended."""
        ended = {rank: code for rank, process in self._processes.items() if (code := process.poll()) is not None}
        if ended:
            causes = ", ".join(f"rank {rank} ({_cause(code)})" for rank, code in ended.items())
            raise RankLostError(f"{causes} ended; see its log")

    def wait(self) -> int:
        """Wait until all end; if one fails, end the others. Returns the exit status for the launcher."""
        while True:
            codes = [process.poll() for process in self._processes.values()]
            failed = next((code for code in codes if code), None)
            if failed is not None:
                self.close()
                return failed if failed > 0 else 128 - failed
            if None not in codes:
                return 0
            time.sleep(0.2)

    def interrupt(self) -> None:
        """Ask all to end."""
        for process in self._processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)

    def close(self, grace_seconds: float = _GRACE_SECONDS) -> None:
        """Give the processes `grace_seconds` to end by themselves, then end them."""
        deadline = time.monotonic() + grace_seconds
        for process in self._processes.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Ranks(Protocol):
    """Ranks that were started somewhere."""

    def check(self) -> None:
        """Raises RankLostError if one is known to have ended."""

    def close(self, grace_seconds: float = ...) -> None:
        """Give them `grace_seconds` to end by themselves, then end them."""


@dataclass(frozen=True, slots=True)
class RankHosts:
    """The machines of a mesh. Its ranks are spread evenly over `nodes` machines; the first is the leader's."""

    master: str = LOOPBACK
    """Its address."""
    nodes: int = 1
    start: Callable[[Sequence[RankEnvironment], Sequence[str]], Ranks] = LocalRanks
    """Starts the other ranks, with their environments and program arguments."""


THIS_MACHINE = RankHosts()


def _cause(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"status {code}"
