"""The cores of a catalogue on a Ray cluster: joined, deployed, looked at, taken down."""

import logging
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import ray
from ray import serve

from gateway.cluster.announced import Announced
from gateway.cluster.core_deployment import CoreDeployment, ReplicaTerms, registry
from gateway.cluster.errors import ClusterError
from gateway.cluster.placement import NodeRoom, placement_of, require_room
from gateway.cluster.registry import NAMESPACE
from gateway.settings import Settings
from tiers.catalog import Catalog

log = logging.getLogger(__name__)

POLL_SECONDS = 0.5
JOIN_SECONDS = 20
_FAILED = ("DEPLOY_FAILED", "UNHEALTHY")


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """How many replicas every core has: `fewest` to begin with, and up to `most` as `autoscaling` has it.

    `cpus`: of a replica of the CPU's core, and of each rank of another. `start_seconds`: how long they may take to
    load. `up_seconds`, `down_seconds`: how long more, or fewer, must be wanted before it is done.
    """

    fewest: int = 1
    most: int = 1
    cpus: float = 1.0
    start_seconds: float = 600.0
    up_seconds: float = 10.0
    down_seconds: float = 300.0


def service_of(catalog: Catalog, core: str) -> str:
    """What the replicas of a core are called in the cluster: as application of Serve and in the registry."""
    return f"aio-{catalog.name}-{core}"


def join(address: str) -> None:
    """Connect this process to a cluster: `auto`, `HOST:PORT` of its head, or `ray://HOST:PORT`. Raises ClusterError."""
    if ray.is_initialized():
        return
    try:
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.WARNING)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise ClusterError(f"no Ray cluster at {address}: {error}. Start one: aio cluster up") from error


def deploy(catalog: Catalog, settings: Settings, scale: Scale, *, anew: bool = False) -> None:
    """Bring all cores of `catalog` up and wait until each serves; what serves already stays as it is, or with `anew`
    takes the numbers of `scale`.

    Raises NoRoomError, with the constraint, before anything is started, and ClusterError if a core does not come up.
    """
    running = serve_applications()
    wanted = [core for core in catalog.core_names if anew or running.get(service_of(catalog, core)) != "RUNNING"]
    if not wanted:
        return
    rooms = free_rooms()
    for core in wanted:
        there = len(announced(catalog, core)) if service_of(catalog, core) in running else 0
        if scale.fewest > there:
            require_room(placement_of(catalog, core, scale.cpus), rooms, scale.fewest - there)
    registry()
    serve.start(proxy_location="Disabled")
    targets = [_target(catalog, settings, core, scale) for core in wanted]
    serve.run_many(targets, wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)
    _wait([service_of(catalog, core) for core in wanted], scale.start_seconds)


def remove(catalog: Catalog) -> list[str]:
    """Take all cores of `catalog` down, each after it has drained; what they were called."""
    names = [service_of(catalog, core) for core in catalog.core_names]
    found = [name for name in names if name in serve_applications()]
    for name in found:
        serve.delete(name)
    return found


def announced(catalog: Catalog, core: str) -> list[Announced]:
    """The replicas of a core that serve now."""
    return list(ray.get(registry().replicas.remote(service_of(catalog, core)), timeout=JOIN_SECONDS))


def free_rooms() -> list[NodeRoom]:
    """What is free on each node that is alive."""
    # Asked for inside: a driver that joined by ray:// does not know.
    task: Any = ray.remote(_free_rooms).options(num_cpus=0)
    return list(ray.get(task.remote(), timeout=JOIN_SECONDS))


def serve_applications() -> dict[str, str]:
    """The status of every application of Serve, by name."""
    return {name: str(app.status.value) for name, app in serve.status().applications.items()}


def _free_rooms() -> list[NodeRoom]:
    free = ray._private.state.available_resources_per_node()
    alive = [node for node in ray.nodes() if node["Alive"]]
    return [NodeRoom(node["NodeID"], free.get(node["NodeID"], {})) for node in alive]


def _target(catalog: Catalog, settings: Settings, core: str, scale: Scale) -> Any:
    placement = placement_of(catalog, core, scale.cpus)
    service = service_of(catalog, core)
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
            "policy": {"policy_function": "gateway.cluster.autoscaling:serve_policy"},
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
    )
    app = serve.deployment(CoreDeployment).options(**options).bind(terms)
    return serve.RunTarget(target=app, name=service, route_prefix=None)


def _wait(names: Sequence[str], seconds: float) -> None:
    """Until all of them run. Raises ClusterError."""
    deadline = time.monotonic() + seconds
    while True:
        apps = serve.status().applications
        states = {name: apps[name].status.value if name in apps else "not there" for name in names}
        if all(state == "RUNNING" for state in states.values()):
            return
        told = [(name, apps[name]) for name in names if states[name] in _FAILED]
        if told or time.monotonic() > deadline:
            reasons = "; ".join(f"{name} is {states[name]}: {_message(apps.get(name))}" for name in names)
            raise ClusterError(f"the cores do not come up: {reasons}")
        time.sleep(POLL_SECONDS)


def _message(app: Any) -> str:
    if app is None:
        return "Serve does not know it"
    said = [app.message, *(deployment.message for deployment in app.deployments.values())]
    return " ".join(filter(None, said))
