"""What a start checks before anything is loaded.

A gateway that other machines reach starts only if callers need a key, or if the operator says that they do not. The
port is free, or it is said what to do. Cards that `aio bench device` has not measured are measured, or it is said how.
"""

import asyncio
import errno
import logging
import os
import socket
import subprocess
import sys
from contextlib import ExitStack

import click

from gateway.base.configuration import CATALOG_FILE, environment_of, own_command, unknown_variables
from gateway.base.gone import gone_lines
from gateway.base.logs import JsonStream
from gateway.base.settings import Settings, SettingsError
from gateway.edge.proxies import authority_of, hosts_of, is_reachable_from_elsewhere
from gateway.operations.setup.exposures import exposures
from gateway.processes.announcement import ServerStartError
from tiers.catalog.catalog import Catalog

log = logging.getLogger(__name__)


def refuse_open_access(settings: Settings) -> None:
    """Raise `SettingsError` where strangers could use the gateway: it listens beyond this machine, and there is no key
    for answers, neither in the settings nor in the database.

    Nothing is changed. A database that cannot be read refuses nothing: until it is read, and if it then has no keys,
    every caller needs one (`Directory.asks_for_keys`). Admin keys do not count, because answers do not need them.
    """
    if settings.insecure or settings.api_keys or not is_reachable_from_elsewhere(settings.host):
        return
    # A supervisor, which has no database, imports none either.
    from gateway.operations.setup.stored_keys import has_answer_keys

    if asyncio.run(has_answer_keys(settings)) is False:
        raise SettingsError(
            f"Other machines can reach AIO_HOST={settings.host}, and no API key exists, so anyone could use this "
            "gateway. Make a key (`aio keys create NAME`, or `aio new-key` for AIO_API_KEYS), or allow callers without "
            "a key with --insecure (AIO_INSECURE=true)."
        )


def warn_of_settings(settings: Settings) -> None:
    """Log which `AIO_` variables change nothing, what is gone, and the worst mistakes of a deployment."""
    for line in (*unknown_variables(os.environ, settings), *gone_lines(os.environ, settings), *exposures(settings)):
        log.warning("%s", line)


def require_port(bound: str, port: int) -> None:
    """Raise `ServerStartError` unless a server can listen there now."""
    if port == 0:
        return
    for listener in bound_sockets(bound, port):
        listener.close()


def bound_sockets(bound: str, port: int, *, reuse_port: bool = False) -> list[socket.socket]:
    """Return a socket for each name and address, which commas separate, bound to one `port` and not listening yet.
    `::` takes IPv4 too. Without `reuse_port` a port that another server uses is detected.

    Raises `ServerStartError`.
    """
    sockets: list[socket.socket] = []
    with ExitStack() as on_failure:
        for host in hosts_of(bound):
            try:
                addresses = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
                families = list(dict.fromkeys((family, address[0]) for family, *_, address in addresses))
                for number, (family, address) in enumerate(families):
                    try:
                        listener = _bound(family, str(address), port, reuse_port=reuse_port)
                    except OSError as error:
                        # A name may have an address of a family that this machine lacks.
                        if len(families) > 1 and error.errno in _NOT_HERE and (sockets or number < len(families) - 1):
                            continue
                        raise
                    sockets.append(listener)
                    on_failure.callback(listener.close)
                    port = port or listener.getsockname()[1]
            except OSError as error:
                raise cannot_listen(host, port, error) from error
        on_failure.pop_all()
    return sockets


_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def _bound(family: int, address: str, port: int, *, reuse_port: bool) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, address != "::")
        listener.bind((address, port))
    except BaseException:
        listener.close()
        raise
    return listener


def cannot_listen(host: str, port: int, error: OSError) -> ServerStartError:
    """Return the error in words, with the option that helps."""
    if error.errno == errno.EADDRINUSE:
        return ServerStartError(f"another program listens on port {port}; choose another port with --port")
    if error.errno == errno.EACCES:
        return ServerStartError(f"this user may not listen on port {port}; choose another port with --port")
    if error.errno in _NOT_HERE or isinstance(error, socket.gaierror):
        return ServerStartError(f"{host} is not an address of this machine; choose one with --host")
    return ServerStartError(f"cannot listen on {authority_of(host, port)}: {error.strerror or error}")


def measure_or_say_how(catalog: Catalog, settings: Settings) -> None:
    """Measure the catalogue's cards in a process of its own if the settings say so, else say how in a line; do nothing
    where all are measured. A measurement that fails is said and does not keep the server from starting."""
    if not any(group.device == "cuda" for group in catalog.served_groups):
        return
    from gateway.runtime.device_report import report_path, unmeasured_groups

    groups = unmeasured_groups(catalog, settings)
    if not groups:
        return
    option = "" if settings.catalog == CATALOG_FILE else f" --catalog {settings.catalog}"
    command = f"aio bench device{option}"
    if not settings.measure_cards:
        click.echo(
            f"AIO has not measured the cards of {', '.join(groups)} yet. Run `{command}` before a start, which takes "
            "about a minute, or set AIO_MEASURE_CARDS=true to measure them at a start."
        )
        return
    click.echo(f"AIO measures the cards of {', '.join(groups)} once, and writes {report_path(settings)}.")
    # Its memory on the cards is free again when it has ended.
    is_json = isinstance(sys.stdout, JsonStream)
    done = subprocess.run(  # noqa: S603 - our own program
        own_command("bench", "device"),
        env={**os.environ, **environment_of(settings)},
        capture_output=is_json,
        text=True,
        check=False,
    )
    if is_json:
        click.echo(f"{done.stdout}{done.stderr}")
    if done.returncode:
        click.echo(
            f"AIO could not measure the cards (see above), and serves them all the same. To try again: {command}"
        )
