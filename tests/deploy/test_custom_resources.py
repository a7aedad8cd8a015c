"""Custom resources: checked by their publishers' schemas if a package contains them, else by the fields we use."""

import copy
import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import promql_parser
import pytest
import yaml

from tests.deploy.files import DEPLOY, run
from tests.deploy.rendered_chart import Object, everything, of_kind, rendered
from tests.deploy.schemas import INFERENCE_POOL, RAY_CLUSTER, RAY_SERVICE

pytestmark = pytest.mark.deploy
PUBLISHED = ("HTTPRoute", "NodePool", "PrometheusRule", "ScaledObject", "ServiceMonitor")
SCHEMAS = Path(sys.prefix) / "schemas"


@pytest.fixture(scope="module")
def objects() -> list[Object]:
    return everything()


def judged(objects: list[Object], folder: Path) -> list[str]:
    """Return the errors by the publishers' schemas."""
    assert SCHEMAS.exists(), "run `make test-deploy`, which installs the schemas"
    file = folder / "objects.json"
    file.write_text(json.dumps(objects))
    done = run("node", Path(__file__).with_name("custom_resources.mjs"), SCHEMAS, file)
    assert done.returncode == 0, done.stderr
    errors: list[str] = json.loads(done.stdout)
    return errors


def published(objects: list[Object]) -> list[Object]:
    return [found for found in objects if found["kind"] in PUBLISHED]


def test_objects_are_what_their_publishers_schemas_know(objects: list[Object], tmp_path: Path) -> None:
    assert {found["kind"] for found in published(objects)} == set(PUBLISHED)
    assert judged(published(objects), tmp_path) == []


def test_each_kind_is_refused_with_a_field_that_is_not_there(objects: list[Object], tmp_path: Path) -> None:
    broken = []
    for kind in PUBLISHED:
        one = copy.deepcopy(next(iter(of_kind(objects, kind).values())))
        one["spec"]["noSuchField"] = 1
        broken.append(one)
    errors = judged(broken, tmp_path)
    assert len(errors) == len(PUBLISHED), errors
    assert all("noSuchField" in line for line in errors)


def test_a_value_of_the_wrong_kind_is_found(objects: list[Object], tmp_path: Path) -> None:
    route = copy.deepcopy(of_kind(objects, "HTTPRoute")["aio"])
    route["spec"]["rules"][0]["timeouts"]["request"] = "ten minutes"
    assert any("timeouts" in line for line in judged([route], tmp_path))


def test_inference_pools_take_the_pods_of_their_pool(objects: list[Object]) -> None:
    pools = of_kind(objects, "InferencePool")
    assert set(pools) == {"aio-cpu-3b", "aio-gpu-8b", "aio-gpu-70b"}
    for name, pool in pools.items():
        assert pool["apiVersion"] == "inference.networking.k8s.io/v1"
        jsonschema.validate(pool["spec"], INFERENCE_POOL)
        labels = of_kind(objects, "StatefulSet")[name]["spec"]["template"]["metadata"]["labels"]
        assert pool["spec"]["selector"]["matchLabels"].items() <= labels.items()
        (rule,) = of_kind(objects, "HTTPRoute")[name]["spec"]["rules"]
        assert rule["backendRefs"] == [{"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": name}]


def validate_pods(cluster: Object) -> None:
    """Check the pods of a Ray cluster by Kubernetes' own schema."""
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ray"}, "spec": group["template"]["spec"]}
        kubernetes_validate.validate(pod, "1.33", strict=True)


def test_a_ray_cluster_is_of_pods_that_kubernetes_knows_under_names_that_kuberay_gives() -> None:
    cluster = of_kind(rendered("ray"), "RayCluster")["aio-ray"]["spec"]
    jsonschema.validate(cluster, RAY_CLUSTER)
    validate_pods(cluster)
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert "app.kubernetes.io/name" not in group["template"]["metadata"]["labels"]


def test_a_ray_service_serves_its_model_on_pods_that_kubernetes_knows(objects: list[Object]) -> None:
    service = of_kind(objects, "RayService")["aio-ray-8b"]
    jsonschema.validate(service["spec"], RAY_SERVICE)
    cluster = service["spec"]["rayClusterConfig"]
    validate_pods(cluster)
    (application,) = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]
    (model,) = application["args"]["llm_configs"]
    assert application["import_path"] == "ray.serve.llm:build_openai_app"
    assert model["model_loading_config"] == {
        "model_id": "llama-3.1-8b",
        "model_source": "/weights/Llama-3.1-8B-Instruct",
    }
    assert model["deployment_config"]["autoscaling_config"] == {"min_replicas": 1, "max_replicas": 4}
    gpus = cluster["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
    assert gpus == model["engine_kwargs"]["tensor_parallel_size"]


def queries(objects: list[Object]) -> list[str]:
    """Return all PromQL that is deployed."""
    rules = [
        rule["expr"]
        for found in of_kind(objects, "PrometheusRule").values()
        for group in found["spec"]["groups"]
        for rule in group["rules"]
    ]
    triggers = [
        trigger["metadata"]["query"]
        for found in of_kind(objects, "ScaledObject").values()
        for trigger in found["spec"]["triggers"]
        if trigger["type"] == "prometheus"
    ]
    adapter: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus" / "adapter.yaml").read_text())
    external = [
        rule["metricsQuery"].replace("<<.LabelMatchers>>", 'namespace="serving"')
        for rule in adapter["rules"]["external"]
    ]
    assert rules
    assert triggers
    return rules + triggers + external


def test_every_query_is_promql(objects: list[Object]) -> None:
    for query in queries(objects):
        promql_parser.parse(query)
    with pytest.raises(ValueError, match="PODS"):
        promql_parser.parse("avg(DCGM_FI_DEV_GPU_UTIL{PODS})")


def test_the_deployed_rules_are_those_of_the_file(objects: list[Object]) -> None:
    (rule,) = of_kind(objects, "PrometheusRule").values()
    assert rule["spec"] == yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())


def test_the_deployed_dashboard_is_that_of_the_file(objects: list[Object]) -> None:
    dashboard = of_kind(objects, "ConfigMap")["aio-dashboard"]
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(dashboard["data"]["aio.json"]) == json.loads((DEPLOY / "grafana" / "aio.json").read_text())


def test_each_pod_is_scraped_once(objects: list[Object]) -> None:
    (monitor,) = of_kind(objects, "ServiceMonitor").values()
    (expression,) = monitor["spec"]["selector"]["matchExpressions"]
    chosen = [
        service["spec"]["selector"]
        for service in of_kind(objects, "Service").values()
        if service["metadata"]["labels"]["app.kubernetes.io/component"] in expression["values"]
    ]
    for kind in ("Deployment", "StatefulSet"):
        for workload in of_kind(objects, kind).values():
            labels = workload["spec"]["template"]["metadata"]["labels"]
            assert sum(selector.items() <= labels.items() for selector in chosen) == 1
