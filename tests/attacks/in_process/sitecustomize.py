"""Measures the event loop from inside an attacked gateway process; Python imports this module at its start.

The folder is on the PYTHONPATH of attacked processes, workers of a supervisor included. A thread asks the loop to run a
callback every few milliseconds. How long that took is written to `$ATTACK_LAGS/PID`, one JSON object a line, where it
took longer than `FLOOR` seconds: `lag` seconds, of which the machine kept its threads from a core for
`machine` seconds (the run-queue time of the kernel, and what a hypervisor gave to others), and `doing`: which threads
had a core, collections of garbage, and what all threads did once the interpreter's lock was to be had.

With `ATTACK_CLOCK`, the file of a number, the process's clock is so many seconds from the machine's. With
`ATTACK_FILES` it may open so many files.
"""

import contextlib
import gc
import importlib.abc
import importlib.util
import json
import mmap
import os
import resource
import struct
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, NamedTuple

INTERVAL, FLOOR = 0.02, 0.05
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_STOLEN_COLUMN = 8


class _Times(NamedTuple):
    """Seconds since the start: by thread, with a core and waiting for one; of all cores, given to other machines."""

    ran: dict[str, float]
    waited: dict[str, float]
    stolen: float


def _times() -> _Times:
    ran, waited = {}, {}
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError, IndexError):
            with open(f"/proc/self/task/{thread}/schedstat", "rb") as file:
                columns = file.read().split()
            ran[thread], waited[thread] = int(columns[0]) / 1e9, int(columns[1]) / 1e9
    with open("/proc/stat", "rb") as file:
        stolen = int(file.readline().split()[_STOLEN_COLUMN]) / _TICKS_A_SECOND
    return _Times(ran, waited, stolen)


def _stacks() -> str:
    """What the other threads do, the ends of their stacks."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()
    # This frame in it would be a cycle: all frames, and the texts in them, would stay until a collection of garbage.
    del frames[threading.get_ident()]
    return "".join(
        f"{names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame)[-6:])}" for ident, frame in frames.items()
    )


class Watch(threading.Thread):
    """Asks one loop for signs of life until the loop is closed."""

    def __init__(self, loop: Any, file: Path) -> None:
        super().__init__(name="loop-watch", daemon=True)
        self._loop, self._file = loop, file
        self._native = str(threading.get_native_id())
        self._collections: list[str] = []
        self._collection_began = 0.0
        gc.callbacks.append(self._on_collection)

    def run(self) -> None:
        while True:
            before, due = _times(), time.monotonic() + INTERVAL
            ran: list[float] = []
            seen = threading.Event()

            def beat(ran: list[float] = ran, seen: threading.Event = seen) -> None:
                ran.append(time.monotonic())
                seen.set()

            time.sleep(INTERVAL)
            try:
                self._loop.call_soon_threadsafe(beat)
            except RuntimeError:
                return
            # This thread itself is late where another one kept the interpreter's lock.
            is_late = time.monotonic() - due > FLOOR or not seen.wait(FLOOR)
            stacks = _stacks() if is_late else ""
            seen.wait()
            lag = ran[0] - due
            if lag > FLOOR:
                self._note(ran[0], lag, before, _times(), stacks)
            self._collections.clear()

    def _note(self, at: float, lag: float, before: _Times, after: _Times, stacks: str) -> None:
        """Note a lag. The machine took what the loop's thread and this one waited, and what the one of the others that
        waited longest did, which may have held the interpreter's lock meanwhile."""
        own = (self._native, str(threading.get_native_id()))
        waited = {thread: seconds - before.waited.get(thread, 0.0) for thread, seconds in after.waited.items()}
        others = [seconds for thread, seconds in waited.items() if thread not in own]
        machine = sum(waited.get(thread, 0.0) for thread in own) + max(others, default=0.0)
        machine += after.stolen - before.stolen
        names = {str(thread.native_id): thread.name for thread in threading.enumerate()} | {self._native: "the loop"}
        ran = {
            names.get(thread, thread): f"{(seconds - before.ran.get(thread, 0.0)) * 1e3:.0f} ms"
            for thread, seconds in after.ran.items()
            if seconds - before.ran.get(thread, 0.0) > FLOOR / 10
        }
        doing = f"threads with a core: {ran}; collections of garbage: {self._collections}\n{stacks}"
        with self._file.open("a") as file:
            file.write(json.dumps({"at": at, "lag": lag, "machine": machine, "doing": doing}) + "\n")

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._collection_began = time.monotonic()
        elif (seconds := time.monotonic() - self._collection_began) > FLOOR / 10:
            self._collections.append(f"generation {info['generation']}: {seconds * 1e3:.0f} ms")


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


def _move_clock(file: str) -> None:
    """Make `time.time` follow a file; what C code asks the system for stays, such as the dates of `datetime`."""
    with open(file, "rb") as opened:
        held = mmap.mmap(opened.fileno(), 8, access=mmap.ACCESS_READ)
    real, read = time.time, struct.Struct("d").unpack
    time.time = lambda: real() + read(held)[0]
    time.time_ns = lambda: int(time.time() * 1e9)


if "ATTACK_CLOCK" in os.environ:
    _move_clock(os.environ["ATTACK_CLOCK"])
if "ATTACK_FILES" in os.environ:
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(os.environ["ATTACK_FILES"]),) * 2)
if "ATTACK_LAGS" in os.environ:
    sys.meta_path.insert(0, _Finder())
