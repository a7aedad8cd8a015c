"""Measures the event loop from inside an attacked gateway process; Python imports this module at its start.

The folder is on the PYTHONPATH of attacked processes, workers of a supervisor included. A thread asks the loop to run a
callback every few milliseconds. How long that took is written to `$ATTACK_LAGS/PID`, one JSON object a line, where it
took longer than `FLOOR` seconds: `lag` seconds, of which the machine kept its threads from a core for
`machine` seconds (the kernel's run-queue time), and `stack`, what the loop was doing meanwhile.
"""

import contextlib
import importlib.abc
import importlib.util
import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

INTERVAL, FLOOR, PATIENCE = 0.02, 0.05, 0.05


def _waited() -> dict[str, float]:
    """Seconds that each thread was ready to run and had no core."""
    found = {}
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError, IndexError):
            found[thread] = int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[1]) / 1e9
    return found


class Watch(threading.Thread):
    """Asks one loop for signs of life until the loop is closed."""

    def __init__(self, loop: Any, file: Path) -> None:
        super().__init__(name="loop-watch", daemon=True)
        self._loop, self._file = loop, file
        self._owner, self._native = threading.get_ident(), str(threading.get_native_id())

    def run(self) -> None:
        while True:
            due = time.monotonic() + INTERVAL
            before = _waited()
            time.sleep(INTERVAL)
            ran: list[float] = []
            seen = threading.Event()

            def beat(ran: list[float] = ran, seen: threading.Event = seen) -> None:
                ran.append(time.monotonic())
                seen.set()

            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(beat)
                stack = "" if seen.wait(PATIENCE) else self._stack()
                seen.wait()
                lag = ran[0] - due
                if lag > FLOOR:
                    self._note({"at": ran[0], "lag": lag, "machine": self._machine(before), "stack": stack})
                continue
            return

    def _machine(self, before: dict[str, float]) -> float:
        """Seconds that the machine took: from the loop's thread, from this one, and from the one of the others that
        waited longest, which may have held the interpreter's lock meanwhile."""
        own = (self._native, str(threading.get_native_id()))
        waited = {thread: seconds - before.get(thread, 0.0) for thread, seconds in _waited().items()}
        others = [seconds for thread, seconds in waited.items() if thread not in own]
        return sum(waited.get(thread, 0.0) for thread in own) + max(others, default=0.0)

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._owner)
        return "" if frame is None else "".join(traceback.format_stack(frame)[-8:])

    def _note(self, found: dict[str, Any]) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps(found) + "\n")


class _Finder(importlib.abc.MetaPathFinder):
    """Adds the watch to uvicorn's server, once it is imported."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != "uvicorn.server":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            _watch_from_startup(module.Server)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _watch_from_startup(server: Any) -> None:
    startup = server.startup

    async def watched(self: Any, *arguments: Any, **named: Any) -> None:
        import asyncio

        await startup(self, *arguments, **named)
        Watch(asyncio.get_running_loop(), Path(os.environ["ATTACK_LAGS"]) / str(os.getpid())).start()

    server.startup = watched


if "ATTACK_LAGS" in os.environ:
    sys.meta_path.insert(0, _Finder())
