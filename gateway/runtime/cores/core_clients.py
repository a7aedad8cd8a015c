"""Makes a client of every core of a catalogue: of a child process or a thread, over a socket, or over its replicas."""

import os
import socket
import subprocess
from functools import partial

from gateway.base.configuration import environment_of, own_command
from gateway.base.settings import Settings
from gateway.runtime.core_factory import core_factory, core_title, socket_of, watchdog_seconds_of
from inference_core.transport.client import CoreClient
from tiers.catalog.catalog import Catalog


def core_clients(catalog: Catalog, settings: Settings) -> dict[str, CoreClient]:
    """Return a client of every core by name, not yet started: over its replicas in a cluster, over a socket in the role
    `gateway`, else of a child process or, if the settings say so, of a thread."""
    if settings.cluster:
        from gateway.runtime.cluster.replicated_core import cluster_cores

        return dict(cluster_cores(catalog, settings))
    return {name: _core_client(catalog, settings, name) for name in catalog.core_names}


def _core_client(catalog: Catalog, settings: Settings, core: str) -> CoreClient:
    if settings.role == "gateway":
        from inference_core.transport.unix_socket import SocketCoreClient

        return SocketCoreClient(socket_of(settings, core))
    if settings.core_process:
        from inference_core.transport.unix_socket import ChildCoreClient

        return ChildCoreClient(partial(_launch, settings, core))
    from inference_core.transport.core_thread import ThreadCoreClient

    return ThreadCoreClient(
        core_factory(catalog, settings, core),
        watchdog_seconds=watchdog_seconds_of(catalog, core),
        title=core_title(catalog, core),
    )


def _launch(settings: Settings, core: str, channel: socket.socket) -> "subprocess.Popen[bytes]":
    """Start `aio serve --role core` on one end of a pair of sockets; it ends with this process."""
    descriptor = channel.fileno()
    return subprocess.Popen(  # noqa: S603 - our own program
        own_command("serve", "--role", "core", "--group", core, "--channel", str(descriptor)),
        env={**os.environ, **environment_of(settings)},
        stdin=subprocess.DEVNULL,
        pass_fds=[descriptor],
        # A terminal's Ctrl-C must reach only this process, which lets answers end first.
        start_new_session=True,
    )
