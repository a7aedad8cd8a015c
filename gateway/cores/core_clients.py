"""Makes a client of every core of a catalogue: on a thread of this process, over a socket, or over its replicas."""

from gateway.core_factory import core_factory, core_title, socket_of, watchdog_seconds_of
from gateway.settings import Settings
from inference_core.transport.client import CoreClient
from tiers.catalog.catalog import Catalog


def core_clients(catalog: Catalog, settings: Settings) -> dict[str, CoreClient]:
    """Return a client of every core by name, not yet started: over its replicas in a cluster, over a socket in the role
    `gateway`, else on a thread."""
    if settings.cluster:
        from gateway.cluster.discovery import cluster_cores

        return dict(cluster_cores(catalog, settings))
    return {name: _core_client(catalog, settings, name) for name in catalog.core_names}


def _core_client(catalog: Catalog, settings: Settings, core: str) -> CoreClient:
    if settings.role == "gateway":
        from inference_core.transport.unix_socket import SocketCoreClient

        return SocketCoreClient(socket_of(settings, core))
    from inference_core.transport.core_thread import ThreadCoreClient

    return ThreadCoreClient(
        core_factory(catalog, settings, core),
        watchdog_seconds=watchdog_seconds_of(catalog, core),
        title=core_title(catalog, core),
    )
