"""The walk of one streamed chat request through the project's files, from the HTTP protocol to its row in the database.

`python -m tests.gateway.walk` prints it; `test_walk.py` bounds it. What is counted:

- *File*: a source file, where the request enters it first. A file is entered when one of its functions is called from
  another file, on any thread. Functions that call nothing, properties, containers' methods (`len`, `in`, ...) and
  methods of msgspec structs only read data: they are no entry.
- *Folder*: one with such a file. A module at the top of its package is a folder of its own.
- *Return*: an arrow from a file to a file of another folder that the request was in before. Each arrow counts once,
  however many tokens take it, and the first into a folder is no return.
- *Layer*: a file on the stack of the coroutine that waits for the next token, from the core's client up to the code
  that sends it.

The gateway is that of the laptop catalogue without keys, in one process, with its cores on a thread. Hash models stand
in for the language models. The request is not the first one, so that nothing is loaded or compiled on its way.
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
from unittest.mock import patch

import msgspec

from gateway.base.settings import Settings
from gateway.edge.http_protocol import BoundedHttpProtocol
from gateway.runtime.cores import engine
from gateway.telemetry import families
from tests.polling import eventually
from tests.support.app import RunningGateway, running_gateway
from tests.support.core import laptop_hash_core
from tiers.local.local_tier import CoreWatch

ROOT = f"{Path(__file__).parents[2]}/"
RECORDED = 12
PACKAGES = ("gateway", "tiers", "classifier", "inference_core", "quality", "migrations")
# Where tokens come from the core.
CORE_CLIENT = "inference_core/transport/"
# Where events are sent, and what the handler alone passes.
SENDING, SERVICE = "gateway/inference/api/sending.py", "gateway/inference/service.py"
_READING_METHODS = ("__bool__", "__contains__", "__get__", "__getitem__", "__iter__", "__len__")
BOUNDED = partial(BoundedHttpProtocol, patience=30, most=100, head_limit=65536)
BODY = {
    "model": "auto",
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "stream": True,
    "temperature": 0.7,
    "max_tokens": 12,
}


class Entered(NamedTuple):
    """How many files and folders of a package the request enters, and how often it comes back to a folder."""

    files: int
    folders: int
    returns: int


class Walk(NamedTuple):
    """`files`: in the order of their first entry, with the function that was called. `arrows`: which file called which,
    over folders; the empty name is the event loop. `layers`: the files that each token passes, from the core's client
    to the socket."""

    files: dict[str, str]
    arrows: set[tuple[str, str]]
    layers: list[str]

    def of(self, package: str) -> Entered:
        """The counts of one package."""
        files = [file for file in self.files if file.startswith(f"{package}/")]
        folders = {folder_of(file) for file in files}
        arrows = sum(called.startswith(f"{package}/") for _, called in self.arrows)
        return Entered(len(files), len(folders), arrows - len(folders))

    def table(self) -> str:
        """One line per file, then the counts by package."""
        lines = [f"{number:3} {file:<56} {name}" for number, (file, name) in enumerate(self.files.items(), start=1)]
        counts = {package: self.of(package) for package in PACKAGES}
        counts["all"] = Entered(*(sum(column) for column in zip(*counts.values(), strict=True)))
        lines += [f"{'':<16}{'files':>8}{'folders':>9}{'returns':>9}"]
        lines += [f"{name:<16}{n.files:>8}{n.folders:>9}{n.returns:>9}" for name, n in counts.items()]
        return "\n".join([*lines, f"{len(self.layers)} layers per token:", *(f"      {one}" for one in self.layers)])


def folder_of(file: str) -> str:
    """The folder of a file; a module at the top of its package is a folder of its own."""
    folder = file.rpartition("/")[0]
    return folder if "/" in folder else file


class _Recorder:
    """A profile function that notes which files are entered while `recording`, and the layers of a token."""

    def __init__(self) -> None:
        self.recording = False
        self.entries: dict[str, str] = {}
        self.arrows: set[tuple[str, str]] = set()
        self.layers: list[str] = []

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if not self.recording or event != "call":
            return
        path = _path(frame.f_code)
        if path is None:
            return
        if path.startswith(CORE_CLIENT):
            layers = _layers(_files_on_stack(frame))
            if len(layers) > len(self.layers):
                self.layers = layers
        caller = frame.f_back
        if (caller is not None and _path(caller.f_code) == path) or _only_reads(frame):
            return
        self.entries.setdefault(path, frame.f_code.co_name)
        origin = next(iter(_files_on_stack(caller)), "")
        if not origin or folder_of(origin) != folder_of(path):
            self.arrows.add((origin, path))


def _files_on_stack(frame: FrameType | None) -> list[str]:
    files: list[str] = []
    while frame is not None:
        path = _path(frame.f_code)
        if path is not None and path not in files:
            files.append(path)
        frame = frame.f_back
    return files


def _layers(files: list[str]) -> list[str]:
    """The files of a stack up to the code that sends the events of the response, which it reaches after the first
    token: before that it is the handler's, by the service. None where it does not reach so far."""
    sending = next((place for place, file in enumerate(files) if file.startswith(SENDING)), 0)
    return files[: sending + 1] if sending and SERVICE not in files else []


@cache
def _path(code: CodeType) -> str | None:
    """The file of the project that `code` is from; None for other code, generated code included."""
    path = code.co_filename.removeprefix(ROOT)
    package = path.partition("/")[0]
    return path if package in PACKAGES and path != code.co_filename else None


@cache
def _calls_nothing(code: CodeType) -> bool:
    return not any(instruction.opname.startswith("CALL") for instruction in dis.get_instructions(code))


def _only_reads(frame: FrameType) -> bool:
    code = frame.f_code
    name = code.co_name
    # Comprehensions are frames of their own up to Python 3.11.
    if _calls_nothing(code) or name.endswith(("comp>", "genexpr>")) or name in _READING_METHODS:
        return True
    first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
    owner = first if isinstance(first, type) else type(first)
    is_property = isinstance(getattr(owner, name, None), property)
    return is_property or (issubclass(owner, msgspec.Struct) and hasattr(owner, name))


async def walked(gateway: RunningGateway, recorder: _Recorder) -> Walk:
    """Send the request once unrecorded, then `RECORDED` times: the walk with the fewest files, since a look of a
    background task that falls into a request adds a few."""
    await _send(gateway)
    walks = []
    for _ in range(RECORDED):
        recorder.entries, recorder.arrows = {}, set()
        recorder.recording = True
        await _send(gateway)
        recorder.recording = False
        walks.append(Walk(recorder.entries, recorder.arrows, recorder.layers))
    return min(walks, key=lambda walk: (len(walk.files), len(walk.arrows)))


async def _never(_: CoreWatch) -> None:
    """In place of the look at a core's figures twice a second."""
    await asyncio.Event().wait()


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
        # Up to ten times a second, whatever is asked: on a busy machine that falls into every recorded request.
        with (
            patch.object(CoreWatch, "_watch", _never),
            patch.object(families, "INTERVAL_SECONDS", 3600.0),
            patch.object(engine, "WATCH_SECONDS", 3600.0),
        ):
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
