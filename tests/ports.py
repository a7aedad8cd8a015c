"""Ports for servers that are started, stopped and restarted."""

import socket


def held_port() -> socket.socket:
    """A socket bound to a free port of 127.0.0.1, so that the kernel assigns the port to no other; a server given the
    port can still listen there."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held
