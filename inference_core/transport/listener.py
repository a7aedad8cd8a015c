"""The listening end of a core server: a Unix socket, or a TCP address that other machines connect to (`tcp`)."""

import asyncio
import contextlib
import os
import socket
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from inference_core.errors import CoreError
from inference_core.protocol import AbortRequest, AddRequest
from inference_core.transport.framing import LOCAL_SILENT_SECONDS, Beats

Protocols = Callable[[], asyncio.Protocol]


class Listener(ABC):
    """`bind` reserves the address, `open` accepts connections, `close` stops accepting; `str` gives the address.

    `is_private`: there is one connection, and the core is of no use once it is closed.
    """

    is_private = False

    def __init__(self) -> None:
        self._listener: asyncio.Server | None = None

    @abstractmethod
    def bind(self) -> None:
        """Reserve the address without accepting connections. Raises `CoreError` if it is not available."""

    @abstractmethod
    async def open(self, connection: Protocols) -> None:
        """Accept connections; `connection` makes a protocol for each."""

    def note_loaded(self) -> None:  # noqa: B027
        """Note that the core behind it can take requests. Most listeners need not know."""

    @abstractmethod
    def _forget(self) -> None:
        """Remove what the listener left at its address."""

    def received(self, command: AddRequest | AbortRequest) -> AddRequest | AbortRequest:
        """Return a received command in the core's terms."""
        return command

    def close(self) -> None:
        """Stop accepting; open connections stay. Idempotent."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            self._forget()


class UnixListener(Listener):
    """A socket at `path`, readable by its owner alone.

    The socket of a dead server is replaced; the socket of a live server and other files are not touched. A client
    gives it up when it is silent for `silent_seconds`.
    """

    def __init__(self, path: str | Path, *, silent_seconds: float = LOCAL_SILENT_SECONDS) -> None:
        super().__init__()
        self.path = str(path)
        self._silent_seconds = silent_seconds
        self._bound: socket.socket | None = None
        self._inode: int | None = None

    def __str__(self) -> str:
        return self.path

    def bind(self) -> None:
        self._bound = _bound_socket(self.path)
        self._inode = os.stat(self.path).st_ino

    async def open(self, connection: Protocols) -> None:
        assert self._bound is not None
        self._listener = await asyncio.get_running_loop().create_unix_server(
            lambda: Beats(connection(), self._silent_seconds), sock=self._bound
        )

    def _forget(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            if os.stat(self.path).st_ino == self._inode:
                os.unlink(self.path)


class ReplacingListener(UnixListener):
    """Takes `path` over from the server that listens there, once the core behind this one has loaded.

    Connections of the other server stay, and it leaves what is at its address to this one.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__(f"{path}.next")
        self._address = str(path)

    def note_loaded(self) -> None:
        os.replace(self.path, self._address)
        self.path = self._address


class InheritedListener(Listener):
    """The one connection that the process which started this one has already made, a stream socket's descriptor."""

    is_private = True

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._connected = socket.socket(fileno=descriptor)

    def __str__(self) -> str:
        return f"descriptor {self._connected.fileno()}"

    def bind(self) -> None:
        """See `Listener.bind`: nothing is to be reserved."""

    async def open(self, connection: Protocols) -> None:
        self._connected.setblocking(False)
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: Beats(connection(), LOCAL_SILENT_SECONDS), self._connected
        )

    def _forget(self) -> None:
        """See `Listener._forget`: it is at no address."""


def _bound_socket(path: str) -> socket.socket:
    """Bound to `path`, not yet listening. Raises `CoreError`."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise CoreError(f"{path} exists and is not a socket; name another path or remove it")
        if _is_listening(path):
            raise CoreError(f"another core listens at {path}; stop it or name another path")
        os.unlink(path)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.bind(path)
        # No client can connect before `listen`, so other users never can.
        os.chmod(path, 0o600)
    except OSError as error:
        bound.close()
        raise CoreError(f"cannot listen at {path}: {error}; name another path (at most 107 bytes)") from error
    return bound


def _is_listening(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return False
        except OSError:
            return True  # a full backlog or no permission: a server is there
        return True
