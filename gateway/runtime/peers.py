"""Messages between the gateway processes behind one port, each on its own Unix socket; which of them this one is, as
given by its supervisor.
"""

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from gateway.base.settings import SettingsError

MOST_SOCKET_BYTES = 107
"""Of a Unix socket's path, on Linux."""


def short_socket_path(path: Path, settings: str) -> Path:
    """Return `path`, of a Unix socket. Raises `SettingsError` that names `settings`, which decide it, if it is too
    long."""
    size = len(os.fsencode(path))
    if size > MOST_SOCKET_BYTES:
        raise SettingsError(
            f"the path of the socket {path} has {size} bytes, and a Unix socket's has at most {MOST_SOCKET_BYTES}: set "
            f"{settings} to a shorter one"
        )
    return path


class WorkerIdentity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Process `number` of `count` behind one port; it accepts connections on inherited sockets, `listeners`."""

    number: int
    count: int
    folder: str
    """The folder of the sockets on which the processes listen for each other ([gateway.runtime.peers][])."""
    listeners: tuple[int, ...]

    @property
    def socket_path(self) -> Path:
        """Where this process listens for the others."""
        return socket_of_worker(Path(self.folder), self.number)


def socket_of_worker(folder: Path, number: int) -> Path:
    """Where worker `number` listens for the others. Raises `SettingsError` for a path that is too long."""
    return short_socket_path(folder / f"{number}.sock", "TMPDIR")


def end_with_supervisor() -> None:
    """Stop as on SIGTERM once standard input, which the supervisor holds open, is closed: the supervisor is gone.

    A SIGHUP that arrives before this process is up is ignored: the catalogue will be read anyway.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def wait() -> None:
        # Not through sys.stdin: a blocked thread would hold its lock when the interpreter ends.
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="supervisor watch", daemon=True).start()


log = logging.getLogger(__name__)

PATIENCE_SECONDS = 2.0
"""A process that is busy for longer is left out of an answer."""

YES = b"yes"
"""Of a question of yes or no."""

Answer = Callable[[str], Awaitable[bytes]]
_question = msgspec.msgpack.Decoder(tuple[str, str])


class Peers:
    """The other gateway processes of this one's supervisor."""

    def __init__(self, worker: WorkerIdentity) -> None:
        self.worker = worker

    @asynccontextmanager
    async def answering(self, answers: Mapping[str, Answer]) -> AsyncIterator[None]:
        """Listen while the context is open; the function that a question names answers it, with its argument."""

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    question, argument = _question.decode(await reader.read())
                    writer.write(await answers[question](argument))
                    await writer.drain()
            except (TimeoutError, OSError, KeyError, msgspec.DecodeError) as error:
                log.warning("a question of another worker was not answered: %r", error)
            finally:
                writer.close()

        path = self.worker.socket_path
        # A draining predecessor no longer answers; its end does not affect this process.
        path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(connected, path)
        ours = path.stat().st_ino
        try:
            yield
        finally:
            server.close()
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_ino == ours:
                    path.unlink()

    async def ask(self, question: str, argument: str = "") -> dict[int, bytes]:
        """Return the answers of all other workers that are up, by number."""
        others = [number for number in range(self.worker.count) if number != self.worker.number]
        folder = Path(self.worker.folder)
        replies = await asyncio.gather(*(ask_worker(folder, other, question, argument) for other in others))
        return {other: reply for other, reply in zip(others, replies, strict=True) if reply is not None}


async def ask_worker(folder: Path, number: int, question: str, argument: str = "") -> bytes | None:
    """Return one worker's answer; None if it is not up or too busy."""
    with contextlib.suppress(TimeoutError, OSError):
        async with asyncio.timeout(PATIENCE_SECONDS):
            reader, writer = await asyncio.open_unix_connection(socket_of_worker(folder, number))
            try:
                writer.write(msgspec.msgpack.encode((question, argument)))
                writer.write_eof()
                return await reader.read()
            finally:
                writer.close()
    return None
