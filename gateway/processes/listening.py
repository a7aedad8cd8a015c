"""The port of a server: whether it is free, and what to do if not; said before anything is loaded."""

import errno
import socket

from gateway.processes.announcement import ServerStartError


def require_port(host: str, port: int) -> None:
    """Raise `ServerStartError` unless a server can listen there now."""
    if port == 0:
        return
    try:
        # Without reuse, so that a port used by another server is detected.
        socket.create_server((host, port), family=family_of(host)).close()
    except OSError as error:
        raise cannot_listen(host, port, error) from error


def family_of(host: str) -> socket.AddressFamily:
    """Return the address family of a host that is an address or a name."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def cannot_listen(host: str, port: int, error: OSError) -> ServerStartError:
    """Return the error in words, with the option that helps."""
    if error.errno == errno.EADDRINUSE:
        return ServerStartError(f"port {port} is taken; use --port")
    if error.errno == errno.EACCES:
        return ServerStartError(f"port {port} needs more rights than this user has; use --port")
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return ServerStartError(f"{host} is not an address of this machine; use --host")
    return ServerStartError(f"cannot listen on {host}:{port}: {error.strerror or error}")
