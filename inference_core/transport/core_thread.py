"""The thread that owns a core: commands in, events out, and the client for the same process.

Events reach the event loop by a relay: steps write the tokens of those under way to a socket, past the interpreter;
everything else is queued by the thread.

A watchdog detects a thread stuck in a piece of work, reports where, and reports when it continues.
"""

import asyncio
import contextlib
import logging
import queue
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from inference_core.errors import (
    CoreError,
    CoreGoneError,
    IntegrityError,
    InvalidRequestError,
    KVTransferError,
    ModelFileError,
)
from inference_core.protocol import (
    AbortRequest,
    AdapterInfo,
    AdaptersSet,
    AddRequest,
    BlocksExported,
    BlocksImported,
    Command,
    CoreHealth,
    CoreStats,
    Event,
    ExportBlocks,
    Hello,
    ImportBlocks,
    Knobs,
    KnobsSet,
    KnobValue,
    LoadAdapter,
    ModelInfo,
    QueryStats,
    SequenceOutput,
    SetKnobs,
    UnloadAdapter,
)
from inference_core.protocol.kv_blocks import BlockChain, BlockFrame
from inference_core.protocol.outputs import MENDABLE, refusal
from inference_core.protocol.token_channel import SharedCount, TokenChannel, TokenRoutes
from inference_core.transport.event_client import EventClient
from inference_core.transport.framing import FrameReader

log = logging.getLogger(__name__)


class Watchdog:
    """Watches one thread, which calls `begin` and `end` around each piece of work.

    `report` gets a sentence once a piece has lasted for more than `limit_seconds`, and None when it has ended after
    all; the first is called on the watchdog's own thread, the second on the watched one. The watchdog's thread calls
    `check` periodically after `start`; `clock` gives seconds; `title` names the watched thread in logs.
    """

    def __init__(
        self,
        limit_seconds: float,
        report: Callable[[str | None], None],
        clock: Callable[[], float] = time.monotonic,
        title: str = "the core",
    ) -> None:
        self._limit_seconds = limit_seconds
        self._title = title
        self._report = report
        self._clock = clock
        self._lock = threading.Lock()
        self._began: float | None = None
        self._reported = False
        self._watched: int | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="aio-watchdog", daemon=True)

    def start(self) -> None:
        self._watched = threading.get_ident()
        self._thread.start()

    def stop(self) -> None:
        """Stop watching; returns when the watchdog's thread has ended."""
        self._over.set()
        self._thread.join()

    def begin(self) -> None:
        """Note that the watched thread begins a piece of work."""
        self._began = self._clock()

    def end(self) -> None:
        """Note that the piece of work has ended."""
        with self._lock:
            self._began = None
            if self._reported:
                self._reported = False
                log.warning("%s goes on", self._title)
                self._report(None)

    def check(self) -> None:
        """Report the current piece of work, once, if it has lasted too long."""
        with self._lock:
            if self._began is None or self._reported:
                return
            seconds = self._clock() - self._began
            if seconds <= self._limit_seconds:
                return
            self._reported = True
            reason = f"no step has finished for {seconds:.1f} s"
            log.error("%s is stuck: %s; it is at\n%s", self._title, reason, self._stack())
            self._report(reason)

    def _watch(self) -> None:
        while not self._over.wait(self._limit_seconds / 4):
            self.check()

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._watched or 0)
        return "".join(traceback.format_stack(frame)) if frame is not None else "(no frame)"


WATCHDOG_SECONDS = 60.0
THE_CORE = "the core"


class SteppingCore(Protocol):
    """The interface of a core to its thread; implemented by `inference_core.engine.core.Core`."""

    @property
    def model_infos(self) -> list[ModelInfo]: ...

    @property
    def has_work(self) -> bool: ...

    @property
    def pause_seconds(self) -> float: ...

    def add(self, request: AddRequest) -> None: ...

    def abort(self, request_id: str, index: int | None = None) -> list[SequenceOutput]: ...

    def step(self) -> list[SequenceOutput]: ...

    def interrupt(self) -> None: ...

    def set_routes(self, routes: TokenRoutes) -> None: ...

    def stats(self, query_id: str) -> CoreStats: ...

    @property
    def knobs(self) -> dict[str, Knobs]: ...

    def set_knobs(self, changes: Mapping[str, KnobValue], model: str | None, keep: bool) -> None: ...

    def load_adapter(self, model: str, name: str, path: str) -> None: ...

    def unload_adapter(self, model: str, name: str) -> None: ...

    def adapters(self, model: str) -> list[AdapterInfo]: ...

    def export_blocks(self, chain: BlockChain, first: int, most_bytes: int) -> BlockFrame: ...

    def import_blocks(self, chain: BlockChain, frame: BlockFrame | None) -> int: ...

    def close(self) -> None: ...


CoreFactory = Callable[[], SteppingCore]


class CoreLoop:
    """Runs a core on its own thread: each turn applies all waiting commands, makes one step, and delivers once.

    `core_factory` is called on that thread. `deliver` gets the events of each turn in one list, `Hello` first;
    `gone` is called last, once, with the error that killed the core, or None after `stop`. Both are called on the
    core's thread and must not block. An idle loop sleeps in the queue. A turn that takes longer than
    `watchdog_seconds` is reported while it lasts: in the log, with the stack of the thread, and by a `CoreHealth`
    that is delivered on another thread. `title` names the core in logs. By `routes` tokens leave before a turn's end.
    """

    def __init__(
        self,
        core_factory: CoreFactory,
        deliver: Callable[[list[Event]], None],
        gone: Callable[[BaseException | None], None],
        watchdog_seconds: float = WATCHDOG_SECONDS,
        title: str = THE_CORE,
        routes: TokenRoutes | None = None,
    ) -> None:
        self._routes = routes
        self._core_factory = core_factory
        self._title = title
        self._deliver = deliver
        self._gone = gone
        self._watchdog = Watchdog(watchdog_seconds, self._tell_health, title=title)
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._interrupt: Callable[[], None] = lambda: None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="aio-core", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, command: Command) -> None:
        """Queue a command for the next turn, which comes after the token under way; from any thread, never blocks."""
        self._commands.put(command)
        self._interrupt()

    def stop(self) -> None:
        """Ask the thread to end after the commands before this one; from any thread, never blocks."""
        self._commands.put(None)
        self._interrupt()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        cause: BaseException | None = None
        try:
            self._serve()
        except BaseException as error:
            log.error("%s died: %s", self._title, error, exc_info=None if isinstance(error, MENDABLE) else error)
            # The traceback's frames would keep the core, its weights and its arena in memory.
            traceback.clear_frames(error.__traceback__)
            cause = error
        self._gone(cause)

    def _serve(self) -> None:
        core = self._core_factory()
        try:
            self._deliver([Hello(models=core.model_infos)])
            self._watchdog.start()
            self._interrupt = core.interrupt
            if self._routes is not None and sys.platform == "linux":
                core.set_routes(self._routes)
            try:
                self._take_turns(core)
            finally:
                self._interrupt = lambda: None
                self._watchdog.stop()
        finally:
            core.close()

    def _tell_health(self, stuck: str | None) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop was closed first
            self._deliver([CoreHealth(stuck=stuck)])

    def _take_turns(self, core: SteppingCore) -> None:
        while not self._stopping:
            events: list[Event] = []
            commands = self._waiting_commands(core.pause_seconds if core.has_work else None)
            self._watchdog.begin()
            for command in commands:
                events += _applied(core, command)
            if not self._stopping and core.has_work:
                events += _stepped(core)
            self._watchdog.end()
            if events:
                self._deliver(events)

    def _waiting_commands(self, patience: float | None) -> list[Command]:
        """Return all waiting commands, or the first that comes within `patience` seconds (None: no limit)."""
        commands: list[Command] = []
        with contextlib.suppress(queue.Empty):
            command = self._commands.get(block=patience is None or patience > 0, timeout=patience)
            while command is not None:
                commands.append(command)
                command = self._commands.get_nowait()
            self._stopping = True
        return commands


def _stepped(core: SteppingCore) -> list[SequenceOutput]:
    """Run one step and return its outputs; a failed choice ends its request."""
    outputs = core.step()
    for output in outputs:
        if output.finish_reason == "error":
            output.error_kind = output.error_kind or "internal"
            core.abort(output.request_id)
    return outputs


def _applied(core: SteppingCore, command: Command) -> list[Event]:
    """Apply one command between two steps and return its answers."""
    if isinstance(command, AddRequest):
        try:
            core.add(command)
        except IntegrityError:
            raise
        except CoreError as error:
            return [refusal(command.request_id, error)]
    elif isinstance(command, AbortRequest):
        ended = core.abort(command.request_id, command.index)
        # The client of a request aborted as a whole does not read its last outputs.
        return [] if command.index is None else [*ended]
    elif isinstance(command, QueryStats):
        return [core.stats(command.query_id)]
    elif isinstance(command, SetKnobs):
        return [_knobs_set(core, command)]
    elif isinstance(command, ExportBlocks):
        return [_blocks_exported(core, command)]
    elif isinstance(command, ImportBlocks):
        return [_blocks_imported(core, command)]
    else:
        return [_adapters_set(core, command)]
    return []


def _knobs_set(core: SteppingCore, command: SetKnobs) -> KnobsSet:
    before = dict(core.knobs)
    answer = KnobsSet(query_id=command.query_id, before=before, knobs=before)
    try:
        core.set_knobs(command.changes, command.model, command.keep)
    except InvalidRequestError as error:
        answer.error, answer.error_param = str(error), error.param
    else:
        answer.knobs = dict(core.knobs)
    return answer


def _adapters_set(core: SteppingCore, command: LoadAdapter | UnloadAdapter) -> AdaptersSet:
    try:
        if isinstance(command, LoadAdapter):
            core.load_adapter(command.model, command.name, command.path)
        else:
            core.unload_adapter(command.model, command.name)
        return AdaptersSet(query_id=command.query_id, adapters=core.adapters(command.model))
    except InvalidRequestError as error:
        return AdaptersSet(query_id=command.query_id, adapters=[], error=str(error), error_param=error.param)
    except ModelFileError as error:
        return AdaptersSet(query_id=command.query_id, adapters=[], error=str(error), error_param="path")


def _blocks_exported(core: SteppingCore, command: ExportBlocks) -> BlocksExported:
    try:
        frame = core.export_blocks(command.chain, command.first, command.most_bytes)
    except KVTransferError as error:
        return BlocksExported(query_id=command.query_id, error=str(error), reason=error.reason)
    return BlocksExported(query_id=command.query_id, frame=frame)


def _blocks_imported(core: SteppingCore, command: ImportBlocks) -> BlocksImported:
    try:
        held = core.import_blocks(command.chain, command.frame)
    except KVTransferError as error:
        return BlocksImported(query_id=command.query_id, error=str(error), reason=error.reason)
    return BlocksImported(query_id=command.query_id, held=held)


def why_dead(cause: BaseException, title: str = THE_CORE) -> str:
    return f"{title} died: {type(cause).__name__}: {cause}"


_MOST_READ = 1 << 16


class TokenRelay:
    """Calls `receive` with queued events, and with outputs that steps write to its channel, in their order.

    `queued` counts the lists of events; `received` is called after each of them with how many have been received. All
    of it happens on the event loop that made the relay, but for `queue`.
    """

    def __init__(
        self, receive: Callable[[Sequence[Event]], None], received: Callable[[int], None] = lambda _: None
    ) -> None:
        self.queued = SharedCount()
        self._received = SharedCount()
        self._receive, self._note_received = receive, received
        self._queueing = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._frames = FrameReader(list[SequenceOutput])
        self._end, other = socket.socketpair()
        self._end.setblocking(False)
        with other:
            self._channel = TokenChannel(other.fileno(), self.queued, self._received)
        self._loop.add_reader(self._end, self._drain)

    def route(self, request_id: str) -> tuple[TokenChannel, str] | None:
        """See `TokenRoutes`: requests keep their ids."""
        return self._channel, request_id

    def queue(self, events: Sequence[Event]) -> None:
        """Receive `events` soon, after the tokens that left before; from any thread. Raises `RuntimeError` once the
        event loop is closed."""
        with self._queueing:
            self.queued.value += 1
            self._loop.call_soon_threadsafe(self._take, events)

    def close(self) -> None:
        """Take no further tokens. Idempotent."""
        if self._end.fileno() >= 0:
            self._loop.remove_reader(self._end)
            self._end.close()

    def _take(self, events: Sequence[Event]) -> None:
        self._drain()
        self._receive(events)
        self._received.value += 1
        self._note_received(self._received.value)

    def _drain(self) -> None:
        while True:
            try:
                data = self._end.recv(_MOST_READ)
            except BlockingIOError:
                return
            for outputs in self._frames.feed(data):
                self._receive(outputs)


class ThreadCoreClient(EventClient):
    """A core on a thread of this process. `core_factory` runs on that thread, at every `start`."""

    def __init__(
        self, core_factory: CoreFactory, *, watchdog_seconds: float = WATCHDOG_SECONDS, title: str = THE_CORE
    ) -> None:
        super().__init__()
        self._title = title
        self._watchdog_seconds = watchdog_seconds
        self._core_factory = core_factory
        self._core_loop: CoreLoop | None = None

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        relay = self._relay = TokenRelay(self._receive)

        def gone(cause: BaseException | None) -> None:
            reason = f"{self._title} stopped" if cause is None else why_dead(cause, self._title)
            with contextlib.suppress(RuntimeError):  # the event loop was closed first
                loop.call_soon_threadsafe(partial(self._on_disconnect, reason, cause, died=cause is not None))

        self._core_loop = CoreLoop(self._core_factory, relay.queue, gone, self._watchdog_seconds, self._title, relay)
        self._core_loop.start()

    async def _disconnect(self) -> None:
        if self._core_loop is not None:
            core_loop, self._core_loop = self._core_loop, None
            core_loop.stop()
            await asyncio.to_thread(core_loop.join)
            self._relay.close()

    def _send(self, command: Command) -> None:
        if self._core_loop is None:
            raise CoreGoneError("the core client is closed")
        self._core_loop.submit(command)
