"""Which of several gateway processes behind one port this one is, as given by its supervisor."""

import os
import signal
import threading
from pathlib import Path

import msgspec


class WorkerPlace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Process `number` of `count` behind one port; it accepts connections on an inherited socket, the descriptor
    `listener`.

    `folder`: the folder of the sockets on which the processes listen for each other ([gateway.runtime.peers.peers][]).
    """

    number: int
    count: int
    folder: str
    listener: int

    @property
    def socket_path(self) -> Path:
        """Where this process listens for the others."""
        return socket_of_worker(Path(self.folder), self.number)


def socket_of_worker(folder: Path, number: int) -> Path:
    """Where worker `number` listens for the others."""
    return folder / f"{number}.sock"


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
