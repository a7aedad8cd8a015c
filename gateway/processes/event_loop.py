"""The event loop of a server process and what bounds it: host names, open files, and its end.

Host names are looked up on threads of their own: a name server that hangs holds up nothing else. The event loop's own
lookups share a few threads with file reads and arithmetic, or with all other lookups.

A connection is accepted only while there is room for it. An event loop's own server accepts all connections that wait
until the process has no file left. uvloop then resets the rest, and tiers, journal and database cannot be opened.
Connections that are not accepted wait in the kernel.

A process that should stop and cannot, since a thread of it waits for a disk or a name server that hangs, is ended at a
deadline. The journal holds what was answered, so nothing is lost; the next process stores it.
"""

import asyncio
import ipaddress
import logging
import os
import resource
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from types import FrameType
from typing import Any

from inference_core.io.background_tasks import repeated

log = logging.getLogger(__name__)

CLOSE_SECONDS = 14.0
"""How long a process may take to stop its parts after the last answer; what hangs has limits below this."""
THREADS_SECONDS = 3.0
"""How long it may then take to end."""


class ExitDeadline:
    """Ends the process `seconds` after `begin`, unless it has ended by itself."""

    def __init__(self) -> None:
        self.status = 1
        """The process's status then: set to 0 once all parts are stopped."""

    def begin(self, seconds: float) -> None:
        """Watch from now on, on a daemon thread. Call it on the main thread; the earliest end counts."""
        threading.Thread(target=self._watch, args=(seconds,), name="exit-deadline", daemon=True).start()
        # Python's threads are gone by the time that a library's own are waited for; the kernel's timer is not.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds + 1.0)

    def _watch(self, seconds: float) -> None:
        threading.Event().wait(seconds)
        frames = sys._current_frames()
        waiting = [thread for thread in threading.enumerate() if not thread.daemon]
        log.error(
            "the process did not end by itself; ended by force. Threads that it waited for:\n%s",
            "\n".join(f"{thread.name}, in {_place(frames.get(thread.ident or 0))}" for thread in waiting),
        )
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(self.status)


def _place(frame: FrameType | None) -> str:
    """Return the innermost five calls of a thread, the last one first."""
    calls = traceback.StackSummary.extract(traceback.walk_stack(frame), limit=5, lookup_lines=False) if frame else ()
    return " < ".join(f"{call.name} ({call.filename}:{call.lineno})" for call in calls) or "no call"


ENOUGH_FILES = 1024
"""From so many files on the loop's own server accepts: they suffice for the process and hundreds of callers."""
# Files besides those open at the start: the journal, connections to the database, a socket that is being accepted.
_SPARE_FILES = 10
_POLL_SECONDS = 0.01


def room_for_connections() -> int | None:
    """Return how many connections this process has files for, two each; None if it may open many."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= ENOUGH_FILES:
        return None
    return max((soft - len(os.listdir("/dev/fd")) - _SPARE_FILES) // 2, 1)


class PacedServer:
    """Takes the place of an `asyncio.Server` that listens at `listener`, of which it makes a copy.

    `connections`: those that are open; at most `room` are accepted. `protocol`: makes a connection's protocol.
    """

    def __init__(
        self,
        listener: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        connections: Collection[object],
        room: int,
    ) -> None:
        self._socket = socket.socket(fileno=os.dup(listener.fileno()))
        self._socket.setblocking(False)
        self.sockets = (self._socket,)
        self._protocol, self._connections, self._room = protocol, connections, room
        self._accepting = repeated(self._accept, "accepting with few open files")
        self._accepting.add_done_callback(lambda _: self._socket.close())

    def close(self) -> None:
        self._accepting.cancel()

    async def wait_closed(self) -> None:
        with suppress(asyncio.CancelledError):
            await self._accepting

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            # Polled: a connection that becomes a WebSocket changes its protocol, and ends with that one.
            while len(self._connections) >= self._room:  # noqa: ASYNC110
                await asyncio.sleep(_POLL_SECONDS)
            try:
                accepted, _ = await loop.sock_accept(self._socket)
                await loop.connect_accepted_socket(self._protocol, accepted)
            except OSError:
                # No file is left for it, or its client has left.
                await asyncio.sleep(_POLL_SECONDS)


KNOWN_SECONDS = 1.0
"""A lookup that takes longer is replaced by the last known addresses, if there are any."""

Addresses = list[tuple[Any, ...]]
_running: dict[tuple[asyncio.AbstractEventLoop, tuple[Any, ...]], asyncio.Future[Addresses]] = {}
_known: dict[tuple[Any, ...], Addresses] = {}


async def lookup(
    host: bytes | str | None,
    port: bytes | str | int | None,
    *,
    family: int = 0,
    type: int = 0,
    proto: int = 0,
    flags: int = 0,
) -> Addresses:
    """Return what `socket.getaddrinfo` returns; equal questions at the same time are asked once. Raises `OSError`."""
    question = host, port, family, type, proto, flags
    loop = asyncio.get_running_loop()
    answer = _running.get((loop, question))
    if answer is None:
        answer = _running[loop, question] = loop.create_future()
        answer.add_done_callback(lambda done: (_running.pop((loop, question)), done.cancelled() or done.exception()))
        threading.Thread(target=_ask, args=(question, loop, answer), name="name-lookup", daemon=True).start()
    cached = _known.get(question)
    if cached is not None and not (await asyncio.wait({answer}, timeout=KNOWN_SECONDS))[0]:
        return cached
    return await asyncio.shield(answer)


class OwnLookups:
    """Added before the class of an event loop: all that connects to a name on it looks the name up here."""

    async def getaddrinfo(self, host: bytes | str | None, port: bytes | str | int | None, **more: int) -> Addresses:
        return await lookup(host, port, **more)

    async def create_connection(
        self, protocol_factory: Callable[[], Any], host: str | None = None, port: Any = None, **more: Any
    ) -> Any:
        """See `asyncio.AbstractEventLoop.create_connection`: to the first address of `host` that accepts."""
        connect: Any = super().create_connection  # type: ignore[misc]
        if host is None or _is_address(host):
            return await connect(protocol_factory, host, port, **more)
        if more.get("ssl"):
            more.setdefault("server_hostname", host)
        failure: OSError | None = None
        for address in await lookup(host, port, family=more.pop("family", 0), type=socket.SOCK_STREAM):
            try:
                return await connect(protocol_factory, str(address[4][0]), port, **more)
            except OSError as error:
                failure = error
        raise failure or OSError(f"{host} has no address")


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop of a gateway process: the faster one, if the extra `server` is installed."""
    if find_spec("uvloop") is None:
        return _AsyncioLoop()
    import uvloop

    loop: asyncio.AbstractEventLoop = type("UvLoop", (OwnLookups, uvloop.Loop), {})()
    return loop


class _AsyncioLoop(OwnLookups, asyncio.SelectorEventLoop):
    """asyncio's own loop."""


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _ask(question: tuple[Any, ...], loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Addresses]) -> None:
    try:
        addresses = _known[question] = socket.getaddrinfo(*question)
    except Exception as error:
        told = partial(_settle, answer, None, error)
    else:
        told = partial(_settle, answer, addresses, None)
    with suppress(RuntimeError):  # The loop was closed first.
        loop.call_soon_threadsafe(told)


def _settle(answer: asyncio.Future[Addresses], addresses: Addresses | None, error: Exception | None) -> None:
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    elif addresses is not None:
        answer.set_result(addresses)
