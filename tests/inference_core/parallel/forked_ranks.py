"""Ranks of tests are forks of one process that has imported torch, which takes each new process 1.5 processor seconds.

`test_mesh_program` starts the program itself.
"""

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import SimpleNamespace


class ForkedRank:
    """A rank as `LocalRanks` knows it, with those methods of `subprocess.Popen` that it and tests use."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        _, minus_m, module, *arguments = command
        assert minus_m == "-m"
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["__main__", "inference_core.parallel.leader"])
        self._process = context.Process(target=_run, args=(module, arguments, dict(env)))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if (code := self.poll()) is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired("a rank", timeout)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


POPEN = SimpleNamespace(Popen=ForkedRank, TimeoutExpired=subprocess.TimeoutExpired)
"""In place of the module `subprocess` in `local_ranks`."""


def _run(module: str, arguments: list[str], environment: dict[str, str]) -> None:
    """Do what `python -m` does, in a fork."""
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
