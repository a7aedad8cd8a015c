"""Addresses of host names, looked up on threads of their own: a name server that hangs holds up nothing else.

The event loop's own lookups share a few threads with file reads and arithmetic, or with all other lookups.
"""

import asyncio
import ipaddress
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import Any

KNOWN_SECONDS = 1.0
"""A lookup that takes longer is replaced by the last known addresses, if there are any."""

Found = list[tuple[Any, ...]]
_running: dict[tuple[asyncio.AbstractEventLoop, tuple[Any, ...]], asyncio.Future[Found]] = {}
_known: dict[tuple[Any, ...], Found] = {}


async def lookup(
    host: bytes | str | None,
    port: bytes | str | int | None,
    *,
    family: int = 0,
    type: int = 0,
    proto: int = 0,
    flags: int = 0,
) -> Found:
    """Return what `socket.getaddrinfo` returns; equal questions at the same time are asked once. Raises `OSError`."""
    question = host, port, family, type, proto, flags
    loop = asyncio.get_running_loop()
    answer = _running.get((loop, question))
    if answer is None:
        answer = _running[loop, question] = loop.create_future()
        answer.add_done_callback(lambda done: (_running.pop((loop, question)), done.cancelled() or done.exception()))
        threading.Thread(target=_ask, args=(question, loop, answer), name="name-lookup", daemon=True).start()
    known = _known.get(question)
    if known is not None and not (await asyncio.wait({answer}, timeout=KNOWN_SECONDS))[0]:
        return known
    return await asyncio.shield(answer)


class OwnLookups:
    """Added before the class of an event loop: all that connects to a name on it looks the name up here."""

    async def getaddrinfo(
        self,
        host: bytes | str | None,
        port: bytes | str | int | None,
        *,
        family: int = 0,
        type: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> Found:
        """See `asyncio.AbstractEventLoop.getaddrinfo`."""
        return await lookup(host, port, family=family, type=type, proto=proto, flags=flags)

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
        for found in await lookup(host, port, family=more.pop("family", 0), type=socket.SOCK_STREAM):
            try:
                return await connect(protocol_factory, str(found[4][0]), port, **more)
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


def _ask(question: tuple[Any, ...], loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Found]) -> None:
    try:
        found = _known[question] = socket.getaddrinfo(*question)
    except Exception as error:
        told = partial(_settle, answer, None, error)
    else:
        told = partial(_settle, answer, found, None)
    with suppress(RuntimeError):  # The loop was closed first.
        loop.call_soon_threadsafe(told)


def _settle(answer: asyncio.Future[Found], found: Found | None, error: Exception | None) -> None:
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    elif found is not None:
        answer.set_result(found)
