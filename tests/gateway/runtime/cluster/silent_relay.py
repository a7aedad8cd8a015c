"""A relay in front of a TCP port, like a proxy or a mesh: it may swallow all bytes without closing a connection."""

import asyncio


class SilentRelay:
    """Passes bytes on in both directions until it is `silent`; then it still reads them, and accepts new
    connections."""

    def __init__(self, port: int) -> None:
        self._onward = port
        self._transports: list[asyncio.StreamWriter] = []
        self._pipes: list[asyncio.Task[None]] = []
        self.silent = False

    async def start(self) -> None:
        """Listen at `port`."""
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        self._server.close()
        for writer in self._transports:
            writer.transport.abort()
        await asyncio.gather(*self._pipes, return_exceptions=True)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward_reader, onward_writer = await asyncio.open_connection("127.0.0.1", self._onward)
        self._transports += [writer, onward_writer]
        for source, sink in ((reader, onward_writer), (onward_reader, writer)):
            self._pipes.append(asyncio.create_task(self._pipe(source, sink)))

    async def _pipe(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 16):
            if not self.silent:
                sink.write(data)
        if not self.silent:
            sink.close()
