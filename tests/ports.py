"""Ports for servers that are started, stopped and started again."""

import socket


def held_port() -> socket.socket:
    """Bound to a free port of 127.0.0.1, which nobody is given by chance while it is open; whoever is told of the port
    listens there as if it were free."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held
