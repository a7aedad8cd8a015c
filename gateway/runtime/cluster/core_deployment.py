"""A replica of a core as Ray Serve runs it: loads the core, listens for gateways, announces itself, and drains.

The ranks of its pipeline stages are in the bundles of its placement group, one stage each, the leader's first.
"""

import asyncio
import logging
import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any

import msgspec
import ray
from ray import serve
from ray.serve._private import replica
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from gateway.base.settings import Settings
from gateway.runtime.cluster.placement import pressures
from gateway.runtime.cluster.registry import ANNOUNCE_SECONDS, NAME, NAMESPACE, Registry, ReplicaAnnouncement, Role
from gateway.runtime.core_factory import core_factory, core_title, watchdog_seconds_of
from inference_core.errors import CoreGoneError
from inference_core.io.background_tasks import repeated
from inference_core.parallel.local_ranks import LocalRanks, RankHosts
from inference_core.parallel.mesh import RankEnvironment
from inference_core.protocol import KnobValue
from inference_core.transport.server import CoreServer
from inference_core.transport.tcp import TcpCoreClient, TcpListener
from inference_core.transport.tls import tls_of
from tiers.catalog.catalog import Catalog


def stage_hosts() -> RankHosts:
    """Return the place of each bundle of this process's replica: a machine, or a Ray node."""
    group = ray.util.get_current_placement_group()
    assert group is not None, "replicas are deployed with a placement group"
    if group.bundle_count == 1:
        return RankHosts()
    return RankHosts(
        master=ray.util.get_node_ip_address(),
        nodes=group.bundle_count,
        start=lambda environments, arguments: StageRanks(group, environments, arguments),
    )


class StageRanks:
    """The leader's stage runs as its own processes, every other one as processes of an actor in its bundle.

    A lost rank of another node is noticed by its broken connection; actors end with the replica that made them.
    """

    def __init__(
        self, group: PlacementGroup, environments: Sequence[RankEnvironment], arguments: Sequence[str]
    ) -> None:
        stages = {
            stage: list(ranks)
            for stage, ranks in groupby(environments, lambda each: each.rank // each.local_world_size)
        }
        self._here = LocalRanks(stages.pop(0, []), arguments)
        self._others: list[Any] = []
        for stage, ranks in stages.items():
            bundle = group.bundle_specs[stage]
            options: dict[str, Any] = {
                "num_cpus": bundle.get("CPU", 0),
                "num_gpus": bundle.get("GPU", 0),
                "memory": bundle.get("memory", 0),
                "scheduling_strategy": PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=stage),
            }
            self._others.append(ray.remote(LocalRanks).options(**options).remote(ranks, arguments))

    def check(self) -> None:
        """See `Ranks`; of this machine's ranks."""
        self._here.check()

    def close(self, grace_seconds: float = 10.0) -> None:
        """See `Ranks`; ranks of other machines end when their leader does."""
        self._here.close(grace_seconds)
        for actor in self._others:
            ray.kill(actor)


log = logging.getLogger(__name__)


class ReplicaTerms(msgspec.Struct, frozen=True, kw_only=True):
    """Start parameters of every replica of a pool; folders are on each node."""

    service: str
    catalog: Catalog
    core: str
    data_dir: str
    cache_dir: str
    drain_seconds: float
    core_tls: str = ""
    """See the setting."""
    role: Role = "both"
    knobs: dict[str, KnobValue] = {}
    """Knobs of the pool."""


class CoreDeployment:
    """One replica. Tokens do not pass through Ray: gateways connect to the announced address."""

    async def __init__(self, terms: ReplicaTerms) -> None:  # type: ignore[misc]  # Serve awaits constructors
        """Return when the core has loaded. Raises what prevents that."""
        _bind_serves_port_to_loopback()
        self._terms = terms
        settings = Settings(data_dir=terms.data_dir, cache_dir=terms.cache_dir)
        settings.data_path.mkdir(parents=True, exist_ok=True, mode=0o700)
        tls = tls_of(terms.core_tls)
        listener = TcpListener(ray.util.get_node_ip_address(), secrets.token_bytes(32), tls=tls)
        self._server = CoreServer(
            core_factory(terms.catalog, settings, terms.core, stage_hosts()),
            listener,
            watchdog_seconds=watchdog_seconds_of(terms.catalog, terms.core),
            title=core_title(terms.catalog, terms.core),
        )
        await self._server.start()
        self._client = TcpCoreClient(listener.address, tls=tls)
        try:
            await self._client.start()
            await self._client.set_knobs(terms.knobs)
        except CoreGoneError:
            await self._server.stop()  # raises why
            raise
        context = serve.get_replica_context()
        node = ray.get_runtime_context().get_node_id()
        self._said = ReplicaAnnouncement(
            name=context.replica_id.unique_id,
            node=node[:8],
            pid=os.getpid(),
            address=listener.address,
            role=terms.role,
            own_knobs=frozenset(terms.knobs),
        )
        self._registry = registry()
        self._announcing = repeated(self._announce, "announcement of a core")

    def check_health(self) -> None:
        """Raise if the core is gone, or if its watchdog reports no progress: Serve then replaces it."""
        if self._client.stuck is not None:
            raise RuntimeError(self._client.stuck)
        self._client.require_core()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """The figures by which `autoscaling.desired_replicas` decides."""
        return pressures(await self._client.stats())

    async def __del__(self) -> None:
        """Drain: gateways send nothing more, and running requests may end within `drain_seconds`."""
        self._said = msgspec.structs.replace(self._said, leaving=True)
        await self._tell()
        with suppress(CoreGoneError):
            await self._server.stop(self._terms.drain_seconds)
        self._announcing.cancel()
        await self._client.close()

    async def _announce(self) -> None:
        """Announce the replica repeatedly: a restarted registry is empty."""
        while True:
            await self._tell()
            await asyncio.sleep(ANNOUNCE_SECONDS)

    async def _tell(self) -> None:
        try:
            await self._registry.announce.remote(self._terms.service, self._said)
        except ray.exceptions.RayError as error:
            log.warning("%s cannot reach the registry: %s", self._said.name, error)


def _bind_serves_port_to_loopback() -> None:
    """Keep other machines from the port that Serve opens in every replica, after its constructor, on all addresses: it
    unpickles what it receives, and asks for no secret. It is for calls between deployments, of which there are none
    here. Versions of Ray without such a port need nothing."""
    if (add := getattr(replica, "add_port_to_grpc_server", None)) is not None:
        replica.add_port_to_grpc_server = lambda server, address: add(server, f"127.0.0.1:{address.rpartition(':')[2]}")


def registry() -> Any:
    """Return a handle of the cluster's registry, started if there is none; Ray restarts it wherever it is lost."""
    options: dict[str, Any] = {
        "name": NAME,
        "namespace": NAMESPACE,
        "get_if_exists": True,
        "lifetime": "detached",
        "num_cpus": 0,
        "max_restarts": -1,
        "max_task_retries": -1,
    }
    make: Callable[..., Any] = ray.remote(Registry).options(**options).remote
    return make()
