"""Catalogues of the chart's value files: valid, served by the containers of their pods, with enough resources."""

import re
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest

from gateway.base.configuration import variable_of
from inference_core.loaders.hub_model import resolve_model_path
from tests.deploy.files import DEPLOY
from tests.deploy.rendered_chart import VALUES, Object, containers, of_kind, pods, rendered
from tests.inference_core.tiny_gguf import decoder_weights, write_gguf
from tiers.catalog import quality_gate
from tiers.catalog.catalog import CPU_CORE, Catalog
from tiers.catalog.load import load_catalog, parse_catalog
from tiers.remote.endpoint import endpoint_of

pytestmark = pytest.mark.deploy
UNITS = {"Mi": 2**20, "Gi": 2**30}


def catalogue_of(name: str, given: str) -> Catalog:
    """The catalogue that a container with AIO_CATALOG reads."""
    if not given.startswith("/"):
        return load_catalog(given)
    folder, _, file = given.rpartition("/")
    assert folder == "/etc/aio/catalogs"
    text = of_kind(rendered(name), "ConfigMap")["aio-catalogs"]["data"][file]
    return parse_catalog(tomllib.loads(text), given)


def environment(container: Object) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in container["env"]}


def serving(name: str) -> dict[str, Object]:
    return {n: pod for n, pod in pods(rendered(name)).items() if n.startswith(("Deployment", "StatefulSet"))}


@pytest.mark.parametrize("name", VALUES)
def test_every_core_of_a_catalogue_has_its_container(name: str) -> None:
    for pod in serving(name).values():
        gateway = pod["spec"]["containers"][0]
        role = gateway["args"][gateway["args"].index("--role") + 1]
        catalogue = catalogue_of(name, environment(gateway)[variable_of("catalog")])
        cores = [
            container["args"][-1]
            for container in containers(pod)
            if container["args"][:3] == ["serve", "--role", "core"]
        ]
        here = role != "all" and "AIO_CLUSTER" not in environment(gateway)
        assert sorted(cores) == (sorted(catalogue.core_names) if here else [])
        assert len({environment(container)["AIO_CATALOG"] for container in containers(pod)}) == 1


@pytest.mark.parametrize("name", VALUES)
def test_a_core_is_given_the_cards_of_its_group_and_the_memory_of_its_arena(name: str) -> None:
    for pod in serving(name).values():
        for container in pod["spec"].get("initContainers", []):
            catalogue = catalogue_of(name, environment(container)["AIO_CATALOG"])
            group, resources = container["args"][-1], container["resources"]
            if group != CPU_CORE:
                assert resources["limits"]["nvidia.com/gpu"] == catalogue.group(group).cards
                assert container["image"].endswith("-cuda")
                continue
            memory = resources["requests"]["memory"]
            bytes_given = float(memory[:-2]) * UNITS[memory[-2:]]
            # A 3B model at four and a half bits per weight, and its arena: the sum of `aio models`.
            assert bytes_given >= catalogue.core.arena_bytes + 3.2e9 * 4.5 / 8
            assert "nvidia.com/gpu" not in resources["limits"]


def test_the_fronts_tiers_lead_to_services_whose_pods_serve_them() -> None:
    objects = rendered("multi-node")
    services, sets = of_kind(objects, "Service"), of_kind(objects, "StatefulSet")
    front = catalogue_of("multi-node", "/etc/aio/catalogs/front.toml")
    for tier in front.tiers:
        assert tier.remote is not None
        assert tier.remote.api_key_env == "AIO_POOL_KEY"
        for server in tier.remote.servers:
            host = str(urlsplit(server.base_url).hostname)
            pod, _, parent = host.partition(".")
            service = services[parent or host]
            wanted = service["spec"]["selector"]["app.kubernetes.io/component"]
            pool = sets["aio-" + wanted.removeprefix("pool-")]
            assert urlsplit(server.base_url).port == service["spec"]["ports"][0]["port"]
            if parent:
                assert pool["spec"]["serviceName"] == parent
                assert int(pod.rpartition("-")[2]) < pool["spec"]["replicas"]
            else:
                assert "replicas" not in pool["spec"]
            gateway = pool["spec"]["template"]["spec"]["containers"][0]
            catalogue = catalogue_of("multi-node", environment(gateway)["AIO_CATALOG"])
            assert tier.remote.model in [served.name for served in catalogue.tiers]


def test_the_front_knows_its_pools_log_probabilities_and_waits() -> None:
    """What a pool answers to these settings: tests/gateway/inference/test_pools_behind_a_gateway.py."""
    front = catalogue_of("multi-node", "/etc/aio/catalogs/front.toml")
    by_pod = []
    for tier in front.tiers:
        assert tier.remote is not None
        assert tier.tells_logprobs
        # Behind a Service a look at the queue would reach any one pod.
        assert (endpoint_of(tier.remote).queue is not None) is tier.remote.is_replicated
        assert tier.remote.stream_whole or tier.remote.is_replicated
        by_pod.append(tier.remote.is_replicated)
    assert by_pod == [False, False, True, True]


@pytest.mark.parametrize("name", VALUES)
def test_a_catalogue_names_as_unmeasured_exactly_the_models_without_a_report(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate refuses these in a cluster, or warns of them. Here their weights have stand-ins, or it would skip
    them."""
    write_gguf(tmp_path / "int4.gguf", decoder_weights(), matrix_kind="Q4_0")
    write_gguf(tmp_path / "dense.gguf", decoder_weights())

    def stand_in(path: str) -> Path:
        if path.startswith("package:"):
            return resolve_model_path(path)
        return tmp_path / ("int4.gguf" if re.search("q4_0|int4|awq", path.lower()) else "dense.gguf")

    monkeypatch.setattr(quality_gate, "resolve_model_path", stand_in)
    for given in {environment(c)["AIO_CATALOG"] for pod in serving(name).values() for c in containers(pod)}:
        catalogue = catalogue_of(name, given)
        bare = msgspec.structs.replace(catalogue, unmeasured={})
        gated = quality_gate.without_report(bare, tmp_path / "cache", refused=False)
        assert sorted(gated) == sorted(catalogue.unmeasured), given


def test_the_front_is_the_datacenter_catalogue_elsewhere() -> None:
    front, shipped = catalogue_of("multi-node", "/etc/aio/catalogs/front.toml"), load_catalog("datacenter")
    for mine, theirs in zip(front.tiers, shipped.tiers, strict=True):
        assert (mine.price, mine.objective, mine.max_tokens) == (theirs.price, theirs.objective, theirs.max_tokens)
        assert mine.expected_answer_tokens == theirs.expected_answer_tokens


def test_a_ray_cluster_has_room_for_every_core_of_its_catalogue() -> None:
    """By docs/reference/ray.md: a CPU core takes a node's memory for its arena, ranks of a group are on one node."""
    objects = rendered("ray")
    workers = of_kind(objects, "RayCluster")["aio-ray"]["spec"]["workerGroupSpecs"]
    limits = [group["template"]["spec"]["containers"][0]["resources"]["limits"] for group in workers]
    catalogue = load_catalog("datacenter")
    for group in catalogue.served_groups:
        assert any(given.get("nvidia.com/gpu", 0) >= group.cards for given in limits)
    assert any(
        float(given["memory"][:-2]) * UNITS[given["memory"][-2:]] > catalogue.core.arena_bytes for given in limits
    )
    gateway = pods(objects)["Deployment/aio-gateway-stable"]["spec"]["containers"][0]
    assert environment(gateway)["AIO_CLUSTER"] == "ray://aio-ray-head-svc:10001"


def test_weights_lie_where_the_shipped_catalogue_looks_for_them() -> None:
    (pod,) = [pod for name, pod in pods(rendered("ray")).items() if name.endswith("/l4x4")]
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["spec"]["containers"][0]["volumeMounts"]}
    catalogue = load_catalog("datacenter")
    assert all(path.startswith("hf:") for path in catalogue.model_paths.values())
    (home,) = re.findall(r"HF_HOME=(\S+)", (DEPLOY / "docker" / "Dockerfile").read_text(encoding="utf-8"))
    assert mounts["weights"] == f"{home}/hub"


def test_the_warm_pool_is_three() -> None:
    """TI-13: three replicas stay loaded, whatever the load."""
    scaler = of_kind(rendered("multi-node"), "ScaledObject")["aio-gpu-8b"]
    assert scaler["spec"]["minReplicaCount"] == 3
