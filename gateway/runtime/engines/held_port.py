"""A free loopback port, reserved for a program that is started, stopped and restarted."""

import socket
import sys

from tiers.engines.programs import HOST


class HeldPort:
    """A bound socket that never listens: the kernel gives its port to no other program, and a server that is given
    the port can still listen there. Only Linux allows that; elsewhere the port is merely one that was free."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self.number = 0
        self.renew()

    def renew(self) -> None:
        """Take another port: the server could not listen on this one."""
        other = _bound()
        self._socket.close()
        self._socket, self.number = other, int(other.getsockname()[1])
        if sys.platform != "linux":
            other.close()

    def close(self) -> None:
        """Give the port back."""
        self._socket.close()


def _bound() -> socket.socket:
    held = socket.socket()
    # Servers set one option or the other, and the kernel lets them share the port only with a socket that has theirs.
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind((HOST, 0))
    return held
