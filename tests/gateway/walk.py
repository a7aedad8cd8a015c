"""The walk of one streamed chat request through the project's files, from the HTTP protocol to its row in the database.

`python -m tests.gateway.walk` prints it; `test_walk.py` bounds it. What is counted:

- *Stop*: a source file of `gateway` or `tiers`, where the request enters it first. A file is entered when one of its
  functions is called from another file, on any thread. Functions that call nothing, properties, containers' methods
  (`len`, `in`, ...) and methods of msgspec structs only read data: they are no entry.
- A subsystem that the request is handed to as a whole is one stop, however many files it has (`SUBSYSTEMS`).
- *Backward*: a stop whose room (folder) the request has left before.
- *Layer*: a file on the stack of the coroutine that waits for the next token, from the core's client up to the code
  that sends it.

The gateway is that of the laptop catalogue without keys, in one process, with its cores on a thread. Hash models stand
in for the language models. The request is the second one, so that nothing is loaded or compiled on its way.
"""

import asyncio
import dis
import sys
import tempfile
import threading
from functools import cache, partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import msgspec

from gateway.base.settings import Settings
from gateway.edge.http_protocol import BoundedHttpProtocol
from tests.gateway.running_gateway import RunningGateway, laptop_hash_core, running_gateway
from tests.polling import eventually

ROOT = f"{Path(__file__).parents[2]}/"
SUBSYSTEMS = {
    "classifier": "classifier",
    "inference_core": "inference_core",
    "quality": "quality",
    "migrations": "quality",
    "gateway/telemetry": "gateway/telemetry",
}
# Where tokens come from the core.
CORE_CLIENT = "inference_core/transport/"
_CONTAINER_METHODS = ("__bool__", "__contains__", "__getitem__", "__iter__", "__len__")
BOUNDED = partial(BoundedHttpProtocol, patience=30, most=100, head_limit=65536)
BODY = {
    "model": "auto",
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "stream": True,
    "temperature": 0.7,
    "max_tokens": 12,
}


class Stop(NamedTuple):
    """A file, its room, the function that was called, and whether the room was left before."""

    file: str
    room: str
    function: str
    backward: bool


class Walk(NamedTuple):
    """The stops in order, and the files that each token passes, from the core's client to the socket."""

    stops: list[Stop]
    layers: list[str]

    @property
    def backward(self) -> list[Stop]:
        """The stops in rooms that the request had left."""
        return [stop for stop in self.stops if stop.backward]

    def table(self) -> str:
        """One line per stop."""
        lines = [
            f"{number:3} {'<' if stop.backward else ' '} {stop.file:<48} {stop.function}"
            for number, stop in enumerate(self.stops, start=1)
        ]
        summary = f"{len(self.stops)} stops, {len(self.backward)} backward (<), {len(self.layers)} layers per token:"
        return "\n".join([*lines, summary, *(f"      {layer}" for layer in self.layers)])


class _Recorder:
    """A profile function that notes which files are entered while `recording`, and the layers of a token."""

    def __init__(self) -> None:
        self.recording = False
        self.entries: dict[str, str] = {}
        self.layers: list[str] = []

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if not self.recording or event != "call":
            return
        path = _path(frame.f_code)
        if path is None:
            return
        if path.startswith(CORE_CLIENT):
            layers = _files_on_stack(frame)
            if _is_complete(layers) and len(layers) > len(self.layers):
                self.layers = layers
        if path not in self.entries and not _only_reads(frame):
            caller = frame.f_back
            if caller is None or _path(caller.f_code) != path:
                self.entries[path] = frame.f_code.co_name


def _files_on_stack(frame: FrameType | None) -> list[str]:
    files: list[str] = []
    while frame is not None:
        path = _path(frame.f_code)
        if path is not None and path not in files:
            files.append(path)
        frame = frame.f_back
    return files


def _is_complete(layers: list[str]) -> bool:
    """Whether a stack reaches from the core's client to the events of the response, which it does after the first
    token; before that it is the handler's."""
    return len(layers) > 1 and layers[-1].startswith("gateway/inference/api/writing/")


@cache
def _path(code: CodeType) -> str | None:
    """The file of the project that `code` is from; None for other code, generated code included."""
    path = code.co_filename.removeprefix(ROOT)
    package = path.partition("/")[0]
    return path if package in ("gateway", "tiers", *SUBSYSTEMS) and path != code.co_filename else None


@cache
def _calls_nothing(code: CodeType) -> bool:
    return not any(instruction.opname.startswith("CALL") for instruction in dis.get_instructions(code))


def _only_reads(frame: FrameType) -> bool:
    code = frame.f_code
    name = code.co_name
    # Comprehensions are frames of their own up to Python 3.11.
    if _calls_nothing(code) or name.endswith(("comp>", "genexpr>")) or name in _CONTAINER_METHODS:
        return True
    first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
    owner = first if isinstance(first, type) else type(first)
    is_property = isinstance(getattr(owner, name, None), property)
    return is_property or (issubclass(owner, msgspec.Struct) and hasattr(owner, name))


def _stops(entries: dict[str, str]) -> list[Stop]:
    stops: list[Stop] = []
    handed: set[str] = set()
    left: set[str] = set()
    for file, function in entries.items():
        room = file.rpartition("/")[0]
        subsystem = next((SUBSYSTEMS[name] for name in SUBSYSTEMS if file.startswith(f"{name}/")), None)
        if subsystem is not None:
            if subsystem in handed:
                continue
            handed.add(subsystem)
            file = room = subsystem
        # A module at the top of its package is a room of its own.
        room = file if room.count("/") == 0 else room
        before = stops[-1].room if stops else room
        if room != before:
            left.add(before)
        stops.append(Stop(file, room, function, room != before and room in left))
    return stops


async def walked(gateway: RunningGateway, recorder: _Recorder) -> Walk:
    """Send the request once unrecorded, then once more."""
    await _send(gateway)
    recorder.recording = True
    await _send(gateway)
    recorder.recording = False
    return Walk(_stops(recorder.entries), recorder.layers)


async def _send(gateway: RunningGateway) -> None:
    """Read the whole stream, and wait until the record is stored."""
    async with gateway.http.stream("POST", "/v1/chat/completions", json=BODY) as response:
        response.raise_for_status()
        lines = [line async for line in response.aiter_lines()]
    assert lines[-2] == "data: [DONE]"
    ledger: Any = gateway.serving.records

    await eventually(lambda: ledger.status().stored == ledger.status().appended)


async def walk_of(data_dir: str) -> Walk:
    """The walk through a gateway that keeps its data in `data_dir`."""
    recorder = _Recorder()
    settings = Settings(
        data_dir=data_dir, monitor=False, drain_seconds=5, keys_poll_seconds=3600, artefact_poll_seconds=3600
    )
    # Threads take their profile function along when they start.
    threading.setprofile(recorder)
    sys.setprofile(recorder)
    try:
        async with running_gateway(
            settings, core=laptop_hash_core(settings), scripted=False, protocol=BOUNDED
        ) as gateway:
            return await walked(gateway, recorder)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def main() -> None:
    """Print the walk."""
    with tempfile.TemporaryDirectory() as data_dir:
        print(asyncio.run(walk_of(data_dir)).table())


if __name__ == "__main__":
    main()
