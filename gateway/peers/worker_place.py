"""Which of several gateway processes behind one port this one is, as its supervisor tells it."""

import os
import signal
import threading
from pathlib import Path

import msgspec


class WorkerPlace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Number `number` of `count` processes of one port; it accepts from an inherited socket, the descriptor `listener`.

    `folder`: where each of them listens for the others ([gateway.peers.peers][]).
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
    """Stop as SIGTERM does once standard input, which the supervisor holds open, is closed: it is gone.

    A SIGHUP that it passes on before this process is up is for the catalogue that will be read anyway.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def wait() -> None:
        # Not through sys.stdin, whose lock a blocked thread would hold when the interpreter ends.
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="supervisor watch", daemon=True).start()
