"""The cores of a catalogue on the Ray cluster that this process has joined: deploy, list, remove."""

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import ray
from ray import serve

from gateway.base.settings import Settings
from gateway.runtime.cluster.core_deployment import CoreDeployment, ReplicaTerms, registry
from gateway.runtime.cluster.placement import ClusterError, NodeRoom, placement_of, require_room
from gateway.runtime.cluster.registry import ReplicaAnnouncement, Role
from inference_core.protocol import KnobValue
from inference_core.transport.tls import require_protection, tls_of
from tiers.catalog.catalog import Catalog

POLL_SECONDS = 0.5
ANSWER_SECONDS = 20
_POOLS: tuple[Role, ...] = ("both", "prefill")  # unique names: any that answers has the first one
_FAILED = ("DEPLOY_FAILED", "UNHEALTHY")


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """How many replicas a pool of every core has."""

    fewest: int = 1
    """Replicas at the start."""
    most: int = 1
    """Most replicas by `autoscaling`."""
    cpus: float = 1.0
    """CPUs of a replica of the CPU core, and of each rank of another core."""
    start_seconds: float = 600.0
    """How long they may take to load."""
    up_seconds: float = 10.0
    """How long the load lasts before scaling up."""
    down_seconds: float = 300.0
    """How long it lasts before scaling down."""
    knobs: dict[str, KnobValue] = {}
    """Live knobs of this pool's replicas only."""


def service_of(catalog: Catalog, core: str, role: Role = "both") -> str:
    """Return the name of a core's pool in the cluster, as Serve application and in the registry. Prefill replicas are a
    separate pool, which is scaled alone (SPEC BS-08)."""
    return f"aio-{catalog.name}-{core}" + ("-prefill" if role == "prefill" else "")


def deploy(
    catalog: Catalog, settings: Settings, scale: Scale, *, prefill: Scale | None = None, redeploy: bool = False
) -> None:
    """Start all cores of `catalog` and wait until each serves. Running ones stay as they are; with `redeploy` they get
    the numbers of `scale`. With `prefill`, a second pool of each computes long prompts for the first one.

    Raises NoRoomError, with the constraint, and CoreTlsError before any start, and ClusterError if a core fails to.
    """
    tls, rooms = tls_of(settings.core_tls), free_rooms()
    for room in rooms:
        require_protection(tls, room.address)
    running = serve_applications()
    pools: dict[Role, Scale] = {"both": scale} if prefill is None else {"decode": scale, "prefill": prefill}
    wanted = [
        (core, role)
        for core in catalog.core_names
        for role in pools
        if redeploy or running.get(service_of(catalog, core, role)) != "RUNNING"
    ]
    if not wanted:
        return
    for core in dict.fromkeys(core for core, _ in wanted):
        # What one pool releases is room for the other.
        lacking = 0
        for name, few in (
            (service_of(catalog, core, role), pools[role].fewest) for wanted_core, role in wanted if wanted_core == core
        ):
            lacking += few - (len(_replicas(name)) if name in running else 0)
        if lacking > 0:
            require_room(placement_of(catalog, core, scale.cpus), rooms, lacking)
    registry()
    serve.start(proxy_location="Disabled")
    targets = [_target(catalog, settings, core, role, pools[role]) for core, role in wanted]
    serve.run_many(targets, wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)
    _wait([service_of(catalog, core, role) for core, role in wanted], scale.start_seconds)
    if redeploy and prefill is None:
        _delete(name for core in catalog.core_names if (name := service_of(catalog, core, "prefill")) in running)


def remove(catalog: Catalog) -> list[str]:
    """Remove all cores of `catalog`, each after it has drained; return their names."""
    running = serve_applications()
    names = [service_of(catalog, core, role) for core in catalog.core_names for role in _POOLS]
    return _delete(name for name in names if name in running)


def _delete(names: Iterable[str]) -> list[str]:
    deleted = list(names)
    for name in deleted:
        serve.delete(name)
    return deleted


def announced(catalog: Catalog, core: str) -> list[ReplicaAnnouncement]:
    """Return the replicas of a core that serve now."""
    return [replica for role in _POOLS for replica in _replicas(service_of(catalog, core, role))]


def _replicas(service: str) -> list[ReplicaAnnouncement]:
    return list(ray.get(registry().replicas.remote(service), timeout=ANSWER_SECONDS))


def free_rooms() -> list[NodeRoom]:
    """Return the free resources of each live node."""
    # Asked inside the cluster: a driver that joined by ray:// does not know.
    task: Any = ray.remote(_free_rooms).options(num_cpus=0)
    return list(ray.get(task.remote(), timeout=ANSWER_SECONDS))


def serve_applications() -> dict[str, str]:
    """Return the status of every Serve application, by name."""
    return {name: str(app.status.value) for name, app in serve.status().applications.items()}


def _free_rooms() -> list[NodeRoom]:
    free = ray._private.state.available_resources_per_node()
    alive = [node for node in ray.nodes() if node["Alive"]]
    return [NodeRoom(node["NodeID"], free.get(node["NodeID"], {}), node["NodeManagerAddress"]) for node in alive]


def _target(catalog: Catalog, settings: Settings, core: str, role: Role, scale: Scale) -> Any:
    placement = placement_of(catalog, core, scale.cpus)
    service = service_of(catalog, core, role)
    leader = dict(placement.bundles[0])
    options: dict[str, Any] = {
        "name": service,
        "ray_actor_options": {
            "num_cpus": leader.get("CPU", 0),
            "num_gpus": leader.get("GPU", 0),
            "memory": leader.get("memory", 0),
        },
        "placement_group_bundles": placement.bundles,
        "placement_group_strategy": placement.strategy,
        "health_check_period_s": 2.0,
        "graceful_shutdown_timeout_s": settings.drain_seconds + 10.0,
        "max_constructor_retry_count": 3,
    }
    if scale.most > scale.fewest:
        options["autoscaling_config"] = {
            "min_replicas": scale.fewest,
            "max_replicas": scale.most,
            "upscale_delay_s": scale.up_seconds,
            "downscale_delay_s": scale.down_seconds,
            "metrics_interval_s": 1.0,
            "look_back_period_s": 5.0,
            "policy": {"policy_function": "gateway.runtime.cluster.placement:serve_policy"},
        }
    else:
        options["num_replicas"] = scale.fewest
    terms = ReplicaTerms(
        service=service,
        catalog=catalog,
        core=core,
        data_dir=str(settings.data_path.absolute() / "cluster"),
        cache_dir=str(settings.cache_path.absolute()),
        drain_seconds=settings.drain_seconds,
        core_tls=settings.core_tls if settings.core_tls in ("", "off") else str(Path(settings.core_tls).absolute()),
        role=role,
        knobs=scale.knobs,
    )
    app = serve.deployment(CoreDeployment).options(**options).bind(terms)
    return serve.RunTarget(target=app, name=service, route_prefix=None)


def _wait(names: Sequence[str], seconds: float) -> None:
    """Wait until all of them run. Raises ClusterError."""
    deadline = time.monotonic() + seconds
    while True:
        apps = serve.status().applications
        states = {name: apps[name].status.value if name in apps else "not there" for name in names}
        if all(state == "RUNNING" for state in states.values()):
            return
        failed = [(name, apps[name]) for name in names if states[name] in _FAILED]
        if failed or time.monotonic() > deadline:
            reasons = "; ".join(f"{name} is {states[name]}: {_message(apps.get(name))}" for name in names)
            raise ClusterError(f"the cores did not start: {reasons}")
        time.sleep(POLL_SECONDS)


def _message(app: Any) -> str:
    if app is None:
        return "Serve does not know it"
    said = [app.message, *(deployment.message for deployment in app.deployments.values())]
    return " ".join(filter(None, said))
