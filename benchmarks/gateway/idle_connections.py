"""What an open but idle conversation costs a gateway: memory and CPU time of its WebSocket (SPEC GW-19).

Over plain HTTP an idle conversation has no connection: the server closes one without a request for some seconds.
"""

import asyncio
import json
from collections.abc import AsyncIterator

import msgspec
from websockets.asyncio.client import ClientConnection, connect

from benchmarks.gateway.process_figures import cpu_seconds, resident_bytes
from benchmarks.gateway.proxy import Target
from gateway.processes.server_process import ServerProcess

# Conversations that begin at the same time.
_AT_ONCE = 50


class Idle(msgspec.Struct, frozen=True):
    """With so many open, idle WebSockets, each after an answered chat: the process's VmRSS, and the CPU seconds that it
    took over `seconds` without a request."""

    connections: int
    bytes: int
    seconds: float
    cpu_seconds: float


async def idle_after_a_chat(
    server: ServerProcess, target: Target, *, most: int, every: int, seconds: float
) -> AsyncIterator[Idle]:
    """Look before the first connection and after each `every` of them, until `most` are open.

    Raises `RuntimeError` if a chat is not answered or a connection was closed meanwhile, `OSError` without a server.
    """
    sockets: list[ClientConnection] = []

    async def look() -> Idle:
        before = cpu_seconds(server.pid)
        await asyncio.sleep(seconds)
        if lost := sum(one.close_code is not None for one in sockets):
            raise RuntimeError(f"{lost} of {len(sockets)} idle connections were closed")
        return Idle(len(sockets), resident_bytes(server.pid), seconds, cpu_seconds(server.pid) - before)

    try:
        yield await look()
        while len(sockets) < most:
            wanted = min(every, most - len(sockets))
            for first in range(0, wanted, _AT_ONCE):
                numbers = range(len(sockets), len(sockets) + min(_AT_ONCE, wanted - first))
                sockets += await asyncio.gather(*(_begun(target, number) for number in numbers))
            yield await look()
    finally:
        await asyncio.gather(*(one.close() for one in sockets))


async def _begun(target: Target, number: int) -> ClientConnection:
    """A connection after its first chat, whose prompt no other one has."""
    socket = await connect(
        f"{target.url.replace('http', 'ws', 1)}/v1/chat/completions/ws",
        additional_headers={"authorization": f"Bearer {target.key}"},
        compression=None,
        ping_interval=None,
        max_queue=1,
    )
    asked = [{"role": "user", "content": f"Conversation {number}."}]
    await socket.send(json.dumps({"model": target.model, "messages": asked}))
    while "choices" in (frame := json.loads(await socket.recv())):
        pass
    if frame.get("status") != "completed":
        await socket.close()
        raise RuntimeError(f"a chat of {target.url} was not answered: {frame}")
    return socket
