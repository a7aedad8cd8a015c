"""Where a core server is reached: a Unix socket of its machine, or an address that other machines connect to."""

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

Protocols = Callable[[], asyncio.Protocol]


class Listener(ABC):
    """`bind`, then `open` it to connections, `close` it once no more are wanted; its text says where it is."""

    def __init__(self) -> None:
        self._listener: asyncio.Server | None = None

    @abstractmethod
    def bind(self) -> None:
        """Take the address, to which nobody can connect yet. Raises `CoreError` if it cannot be had."""

    @abstractmethod
    async def open(self, connection: Protocols) -> None:
        """Accept connections; each is spoken to by a protocol of its own that `connection` makes."""

    @abstractmethod
    def _forget(self) -> None:
        """Leave nothing behind where the listener was."""

    def received(self, command: AddRequest | AbortRequest) -> AddRequest | AbortRequest:
        """A command as the core is to get it."""
        return command

    def close(self) -> None:
        """Accept nobody any more; open connections stay. Idempotent."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            self._forget()


class UnixListener(Listener):
    """A socket at `path`, readable by its owner alone.

    What a dead server left behind is removed; a living server's socket and other files are not touched.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self.path = str(path)
        self._bound: socket.socket | None = None
        self._inode: int | None = None

    def __str__(self) -> str:
        return self.path

    def bind(self) -> None:
        """See `Listener.bind`."""
        self._bound = _bound_socket(self.path)
        self._inode = os.stat(self.path).st_ino

    async def open(self, connection: Protocols) -> None:
        """See `Listener.open`."""
        assert self._bound is not None
        self._listener = await asyncio.get_running_loop().create_unix_server(connection, sock=self._bound)

    def _forget(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            if os.stat(self.path).st_ino == self._inode:
                os.unlink(self.path)


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
        # Nobody can connect before it listens, so there is no moment at which others could.
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
            return True  # a full backlog or no permission: somebody is there
        return True
