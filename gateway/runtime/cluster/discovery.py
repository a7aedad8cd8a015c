"""How a gateway finds the replicas of its cores: through the registry of the cluster."""

import asyncio
from collections.abc import Mapping
from functools import partial

from gateway.base.settings import Settings
from gateway.runtime.cluster.registry import Announced
from gateway.runtime.cluster.replicated_core import ReplicatedCore
from gateway.runtime.core_factory import core_title
from inference_core.transport.client import CoreClient
from inference_core.transport.tcp import TcpCoreClient
from inference_core.transport.tls import tls_of
from tiers.catalog.catalog import Catalog


def cluster_cores(catalog: Catalog, settings: Settings) -> Mapping[str, CoreClient]:
    """Return a client over all replicas of every core, by name, not yet started. The first to start joins the
    cluster. Raises `CoreTlsError` if the certificates cannot be used."""
    tls = tls_of(settings.core_tls)

    def connect(announced: Announced) -> TcpCoreClient:
        return TcpCoreClient(announced.address, tls=tls)

    return {
        core: ReplicatedCore(
            core_title(catalog, core), partial(_announced, catalog, core, settings.cluster), connect=connect
        )
        for core in catalog.core_names
    }


async def _announced(catalog: Catalog, core: str, address: str) -> list[Announced]:
    return await asyncio.to_thread(_ask, catalog, core, address)


def _ask(catalog: Catalog, core: str, address: str) -> list[Announced]:
    from gateway.runtime.cluster.fleet import announced
    from gateway.runtime.cluster.join import join

    join(address)
    return announced(catalog, core)
