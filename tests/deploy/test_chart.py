"""The chart: each value file renders to objects valid by Kubernetes' schemas, and to pods that follow our rules."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from gateway.base.configuration import variable_of
from gateway.base.settings import Settings
from gateway.cli.planning.plan import serve as serve_fleet
from gateway.cli.serving.serve import worker as run_worker
from gateway.edge.proxies import host_is_allowed
from tests.deploy.files import read_yaml, run, strings
from tests.deploy.rendered_chart import (
    CHART,
    VALUES,
    Object,
    RenderError,
    all_pods,
    containers,
    everything,
    helm,
    of_kind,
    pods,
    render,
    rendered,
)

pytestmark = pytest.mark.deploy
SETS = [*VALUES, "everything"]
KUBERNETES = "1.33"
CUSTOM = ("keda.sh", "monitoring.coreos.com", "gateway.networking.k8s.io", "inference.networking.k8s.io", "ray.io")
CUSTOM += ("karpenter.sh",)


def validate_all(objects: list[Object]) -> None:
    """Raise for the first invalid object, unknown fields included."""
    for found in objects:
        kubernetes_validate.validate(found, KUBERNETES, strict=True)


@pytest.fixture(scope="module")
def releases() -> dict[str, list[Object]]:
    return {name: list(rendered(name)) for name in VALUES} | {"everything": everything()}


@pytest.mark.parametrize("name", VALUES)
def test_the_linter_finds_nothing(name: str) -> None:
    done = run(helm(), "lint", "--strict", CHART, "--values", VALUES[name])
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", SETS)
def test_objects_are_what_the_schemas_know(name: str, releases: dict[str, list[Object]]) -> None:
    plain = [found for found in releases[name] if found["apiVersion"].split("/")[0] not in CUSTOM]
    assert plain
    validate_all(plain)


@pytest.mark.parametrize("name", SETS)
def test_names_are_unique_and_carry_the_releases_labels(name: str, releases: dict[str, list[Object]]) -> None:
    names = [(found["kind"], found["metadata"]["name"]) for found in releases[name]]
    assert len(set(names)) == len(names)
    assert all(found["metadata"]["labels"]["app.kubernetes.io/instance"] == "aio" for found in releases[name])


@pytest.mark.parametrize("name", SETS)
def test_pods_are_unprivileged_and_carry_no_token(name: str, releases: dict[str, list[Object]]) -> None:
    for made, template in pods(releases[name]).items():
        spec = template["spec"]
        # Only Ray's autoscaler asks Kubernetes for anything: for pods.
        assert spec["automountServiceAccountToken"] is (made == "RayCluster/aio-ray/head")
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in containers(template):
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
            assert mounts >= {"/var/lib/aio", "/var/cache/aio", "/run/aio", "/tmp"}
            volumes = {volume["name"] for volume in spec["volumes"]}
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
            assert not container["image"].endswith((":latest", ":"))
            assert container["resources"]["requests"].keys() >= {"cpu", "memory"}


def test_user_group_and_volume_group_are_values_and_may_be_left_to_the_cluster() -> None:
    given = render('podSecurity={"user": 4000, "group": 0, "fsGroup": 1000660000}')
    left = render('podSecurity={"user": null, "group": null, "fsGroup": null}')
    for template in pods(given).values():
        security = template["spec"]["securityContext"]
        assert [security[name] for name in ("runAsUser", "runAsGroup", "fsGroup")] == [4000, 0, 1000660000]
    assert pods(given).keys() == pods(left).keys() != set()
    for template in pods(left).values():
        assert template["spec"]["securityContext"].keys() == {"runAsNonRoot", "seccompProfile"}
    with pytest.raises(RenderError, match="user"):
        render('podSecurity={"user": 0}')


@pytest.mark.parametrize("name", SETS)
def test_a_pod_is_given_longer_to_end_than_it_drains(name: str, releases: dict[str, list[Object]]) -> None:
    kinds = ("Deployment/aio-gateway", "Deployment/aio-worker", "StatefulSet")
    served = {n: t for n, t in pods(releases[name]).items() if n.startswith(kinds)}
    assert served
    for template in served.values():
        gateway = template["spec"]["containers"][0]
        waits = int(gateway["lifecycle"]["preStop"]["exec"]["command"][1])
        drains = next(int(e["value"]) for e in gateway["env"] if e["name"] == "AIO_DRAIN_SECONDS")
        # 15 s after its drain a supervisor kills what is left (gateway.processes.supervisor).
        assert template["spec"]["terminationGracePeriodSeconds"] >= waits + drains + 15
        assert {"startupProbe", "livenessProbe", "readinessProbe"} <= gateway.keys()
        assert gateway["readinessProbe"]["httpGet"]["path"] == "/health/ready"


@pytest.mark.parametrize("name", SETS)
def test_what_is_set_are_settings_and_secrets_come_from_the_secret(
    name: str, releases: dict[str, list[Object]]
) -> None:
    catalogues = of_kind(releases[name], "ConfigMap").get("aio-catalogs", {"data": {}})["data"]
    keys = set(re.findall(r'api_key_env = "(\w+)"', " ".join(catalogues.values())))
    known = {variable_of(field) for field in Settings.__struct_fields__} | keys | {"HOME"}
    for template in pods(releases[name]).values():
        for container in containers(template):
            given = {entry["name"]: entry for entry in container["env"]}
            assert given.keys() <= known
            assert len(given) == len(container["env"])
            for variable in given.keys() & {"AIO_DATABASE_URL", "AIO_REDIS_URL", "AIO_API_KEYS", "AIO_ADMIN_KEYS"}:
                assert given[variable]["valueFrom"]["secretKeyRef"]["name"] == (
                    "aio-keys" if name == "laptop" else "aio"
                )


def test_without_keys_processes_are_reached_by_the_names_of_their_services_and_by_no_others(
    releases: dict[str, list[Object]],
) -> None:
    def allowed(template: Object, host: str) -> bool:
        (given,) = (one["value"] for one in containers(template)[-1]["env"] if one["name"] == "AIO_ALLOWED_HOSTS")
        return host_is_allowed(host, "0.0.0.0", given)

    laptop = pods(releases["laptop"])["Deployment/aio-gateway-stable"]
    for host in ("aio-gateway:8080", "aio-gateway.serving:8080", "aio-gateway-stable.serving.svc.cluster.local", "::1"):
        assert allowed(laptop, f"[{host}]" if host == "::1" else host), host
    for host in ("evil.example", "aio-gateway.evil.example", "evil.serving.svc.cluster.local"):
        assert not allowed(laptop, host), host
    catalogues = of_kind(releases["multi-node"], "ConfigMap")["aio-catalogs"]["data"]
    asked = re.findall(r"http://(aio-[\w-]+(?:\.[\w-]+)?:8080)", catalogues["front.toml"])
    pools = [template for name, template in pods(releases["multi-node"]).items() if name.startswith("StatefulSet/")]
    assert len(asked) > 3
    for host in asked:
        assert sum(allowed(template, host) for template in pools) == 1, host


@pytest.mark.parametrize("name", SETS)
def test_services_disruption_budgets_and_policies_select_pods(name: str, releases: dict[str, list[Object]]) -> None:
    labels = [template["metadata"]["labels"] for template in all_pods(releases[name]).values()]

    def selects(wanted: dict[str, str]) -> bool:
        return any(wanted.items() <= given.items() for given in labels)

    for service in of_kind(releases[name], "Service").values():
        assert selects(service["spec"]["selector"]), service["metadata"]["name"]
    for budget in of_kind(releases[name], "PodDisruptionBudget").values():
        assert selects(budget["spec"]["selector"]["matchLabels"])
    for policy in of_kind(releases[name], "NetworkPolicy").values():
        assert selects(policy["spec"]["podSelector"]["matchLabels"])


@pytest.mark.parametrize("name", SETS)
def test_every_claim_config_and_account_that_a_pod_names_is_there(name: str, releases: dict[str, list[Object]]) -> None:
    objects = releases[name]
    claims = {*of_kind(objects, "PersistentVolumeClaim"), "aio-weights"}
    for template in pods(objects).values():
        for volume in template["spec"]["volumes"]:
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in claims
            if "configMap" in volume:
                assert volume["configMap"]["name"] in of_kind(objects, "ConfigMap")
        account = template["spec"].get("serviceAccountName")
        assert account is None or account in of_kind(objects, "ServiceAccount")
    assert all(a["automountServiceAccountToken"] is False for a in of_kind(objects, "ServiceAccount").values())


def test_a_migration_runs_before_anything_of_the_release_is_there(releases: dict[str, list[Object]]) -> None:
    job = of_kind(releases["multi-node"], "Job")["aio-migrate"]
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    spec = job["spec"]["template"]["spec"]
    assert spec["containers"][0]["args"] == ["migrate"]
    assert "serviceAccountName" not in spec
    assert all("emptyDir" in volume for volume in spec["volumes"])


def test_retraining_shares_the_gateways_folder_and_is_theirs_no_more(releases: dict[str, list[Object]]) -> None:
    job = of_kind(releases["multi-node"], "CronJob")["aio-retrain"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert job["containers"][0]["args"] == ["retrain"]
    gateway = pods(releases["multi-node"])["Deployment/aio-gateway-stable"]["spec"]
    shared = [v for v in gateway["volumes"] if v["name"] == "data"]
    assert shared == [v for v in job["volumes"] if v["name"] == "data"]
    assert {"name": "AIO_RETRAIN_CRON", "value": ""} in gateway["containers"][0]["env"]


def test_pools_are_asked_by_gateways_and_workers_alone(releases: dict[str, list[Object]]) -> None:
    policies = of_kind(releases["multi-node"], "NetworkPolicy")
    for pool in ("cpu-3b", "gpu-8b", "gpu-70b"):
        (rule,) = policies[f"aio-{pool}"]["spec"]["ingress"]
        allowed = [peer["podSelector"]["matchLabels"] for peer in rule["from"] if "podSelector" in peer]
        assert [labels["app.kubernetes.io/component"] for labels in allowed] == ["gateway", "worker"]
        ports = [port["port"] for rule in policies[f"aio-{pool}"]["spec"]["egress"] for port in rule["ports"]]
        assert set(ports) == {53}


def test_pools_know_keys_by_hash_and_gateways_one_of_them(releases: dict[str, list[Object]]) -> None:
    made = pods(releases["multi-node"])

    def secret(name: str, variable: str) -> str:
        env = {entry["name"]: entry for entry in made[name]["spec"]["containers"][0]["env"]}
        return str(env[variable]["valueFrom"]["secretKeyRef"]["key"])

    assert secret("StatefulSet/aio-gpu-8b", "AIO_API_KEYS") == "AIO_POOL_API_KEYS"
    # Otherwise each pod would make an admin key and print it into its log.
    assert secret("StatefulSet/aio-gpu-8b", "AIO_ADMIN_KEYS") == "AIO_ADMIN_KEYS"
    assert secret("Deployment/aio-gateway-stable", "AIO_POOL_KEY") == "AIO_POOL_KEY"


def test_weights_of_versions_come_to_100_and_reach_their_pods(releases: dict[str, list[Object]]) -> None:
    (rule,) = of_kind(releases["everything"], "HTTPRoute")["aio"]["spec"]["rules"]
    weights = {backend["name"]: backend["weight"] for backend in rule["backendRefs"]}
    assert weights == {"aio-gateway-stable": 90, "aio-gateway-canary": 10}
    services = of_kind(releases["everything"], "Service")
    for name in weights:
        version = services[name]["spec"]["selector"]["aio/version"]
        assert pods(releases["everything"])[f"Deployment/{name}"]["metadata"]["labels"]["aio/version"] == version
    canary = pods(releases["everything"])["Deployment/aio-gateway-canary"]["spec"]["containers"][0]
    assert canary["image"] == "aio:0.2.0-cpu"


@pytest.mark.parametrize("name", ["multi-node", "everything"])
def test_autoscalers_keep_the_warm_pool_and_scale_what_is_there(name: str, releases: dict[str, list[Object]]) -> None:
    objects = releases[name]
    for scaler in of_kind(objects, "HorizontalPodAutoscaler").values():
        spec = scaler["spec"]
        assert 2 <= spec["minReplicas"] <= spec["maxReplicas"] == 32
        assert spec["scaleTargetRef"]["name"] in of_kind(objects, spec["scaleTargetRef"]["kind"])
        assert spec["behavior"]["scaleDown"]["stabilizationWindowSeconds"] >= 300
    for scaler in of_kind(objects, "ScaledObject").values():
        spec = scaler["spec"]
        assert 3 <= spec["minReplicaCount"] <= spec["maxReplicaCount"] == 32
        target = of_kind(objects, spec["scaleTargetRef"]["kind"])[spec["scaleTargetRef"]["name"]]
        assert "replicas" not in target["spec"]
        by_utilisation = [one for one in spec["triggers"] if one.get("name") == "gpu_utilization"]
        assert [one["metadata"]["threshold"] for one in by_utilisation] in ([], ["70"])
    metrics = of_kind(releases["everything"], "HorizontalPodAutoscaler")["aio-gpu-70b"]["spec"]["metrics"]
    by_name = {metric["external"]["metric"]["name"]: metric["external"]["target"] for metric in metrics}
    assert by_name["gpu_utilization"] == {"type": "Value", "value": "70"}


def test_workers_answer_what_gateways_leave_from_the_same_folder_and_with_the_same_secrets(
    releases: dict[str, list[Object]],
) -> None:
    made = pods(releases["multi-node"])
    worker, gateway = (made[f"Deployment/aio-{name}"]["spec"] for name in ("worker", "gateway-stable"))
    (container,), (front,) = worker["containers"], gateway["containers"]
    options = run_worker.make_context("worker", container["args"][1:]).params
    assert (container["args"][0], options["role"], options["port"]) == ("worker", "gateway", 8080)
    assert container["ports"] == front["ports"]
    given, fronts = ({entry["name"]: entry for entry in one["env"]} for one in (container, front))
    assert (given["AIO_BATCH_CONCURRENCY"]["value"], fronts["AIO_BATCH_CONCURRENCY"]["value"]) == ("64", "0")
    assert given["AIO_CATALOG"] == fronts["AIO_CATALOG"]
    assert [e for e in given.values() if "valueFrom" in e] == [e for e in fronts.values() if "valueFrom" in e]
    assert [v for v in worker["volumes"] if v["name"] == "data"] == [
        v for v in gateway["volumes"] if v["name"] == "data"
    ]


def test_without_workers_the_gateways_answer_batches(releases: dict[str, list[Object]]) -> None:
    for name in ("laptop", "one-gpu", "ray"):
        made = pods(releases[name])
        assert "Deployment/aio-worker" not in made
        variables = [entry["name"] for entry in made["Deployment/aio-gateway-stable"]["spec"]["containers"][0]["env"]]
        assert "AIO_BATCH_CONCURRENCY" not in variables


def test_workers_go_where_gateways_go_and_only_metrics_are_asked_of_them(releases: dict[str, list[Object]]) -> None:
    policies = of_kind(releases["multi-node"], "NetworkPolicy")
    worker, gateway = (policies[f"aio-{name}"]["spec"] for name in ("worker", "gateway"))
    assert worker["egress"] == gateway["egress"]
    (rule,) = worker["ingress"]
    assert rule["from"] == read_yaml(CHART / "values.yaml")["networkPolicy"]["monitoring"]
    monitor = of_kind(releases["multi-node"], "ServiceMonitor")["aio"]["spec"]["selector"]["matchExpressions"][0]
    assert "worker" in monitor["values"]


@pytest.mark.parametrize("by", ["hpa", "keda"])
def test_workers_are_scaled_by_the_lines_that_wait(by: str) -> None:
    scaling = json.dumps({"enabled": True, "by": by, "min": 1, "max": 5})
    objects = render(VALUES["multi-node"], f"worker.autoscaling={scaling}")
    assert "replicas" not in of_kind(objects, "Deployment")["aio-worker"]["spec"]
    if by == "hpa":
        (metric,) = of_kind(objects, "HorizontalPodAutoscaler")["aio-worker"]["spec"]["metrics"]
        wanted = metric["external"]["target"]
        assert (metric["external"]["metric"]["name"], wanted["averageValue"]) == ("batch_lines_waiting", "1000")
    else:
        (trigger,) = of_kind(objects, "ScaledObject")["aio-worker"]["spec"]["triggers"]
        assert trigger["metadata"]["query"] == (
            'max(aio_batch_lines_waiting{namespace="serving",app_kubernetes_io_component="worker"})'
        )


def test_the_fleets_target_is_read_where_it_is_served(releases: dict[str, list[Object]]) -> None:
    objects = releases["everything"]
    triggers = of_kind(objects, "ScaledObject")["aio-cpu-3b"]["spec"]["triggers"]
    (target,) = [trigger["metadata"] for trigger in triggers if trigger["type"] == "metrics-api"]
    assert target["url"] == "http://aio-fleet.serving:8090/v1/fleet"
    (container,) = pods(objects)["Deployment/aio-fleet"]["spec"]["containers"]
    options = serve_fleet.make_context("serve", container["args"][2:]).params
    assert options["tiers"] == ("1=smollm2-135m-int4-cpu",)
    assert options["gateways"] == ("http://aio-gateway-pods:8080",)
    assert options["port"] == of_kind(objects, "Service")["aio-fleet"]["spec"]["ports"][0]["port"]
    assert of_kind(objects, "Service")["aio-gateway-pods"]["spec"]["clusterIP"] == "None"


def test_external_metrics_are_served_by_the_adapters_rules(releases: dict[str, list[Object]]) -> None:
    rules = read_yaml(CHART.parents[1] / "prometheus" / "adapter.yaml")["rules"]["external"]
    served = {rule["name"]["as"] for rule in rules}
    for scaler in of_kind(releases["everything"], "HorizontalPodAutoscaler").values():
        named = {m["external"]["metric"]["name"] for m in scaler["spec"]["metrics"] if m["type"] == "External"}
        assert named <= served


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("laptop", ['gateway.versions=[{"name":"a","weight":100,"replicas":2}]'], "ReadWriteMany"),
        ("multi-node", ['gateway.versions=[{"name":"a","weight":90,"replicas":2}]'], "weights come to 90"),
        ("multi-node", ['secret.name=""', "retrain.enabled=false"], "name the Secret"),
        ("laptop", ["retrain.enabled=true"], "retrain.enabled"),
        ("multi-node", ['secret.poolKeys=""'], "start with a key only"),
        ("laptop", ['networkPolicy.callers=[{"namespaceSelector":{}}]'], "networkPolicy.callers"),
        ("laptop", ["networkPolicy.callers=[{}]"], "networkPolicy.callers"),
        ("laptop", ['networkPolicy.namespaces=["*"]'], "networkPolicy.namespaces"),
        ("laptop", ["worker.enabled=true", "gateway.persistence.enabled=false"], "name the Secret"),
        ("one-gpu", ["worker.enabled=true"], "ReadWriteMany"),
        ("multi-node", ["worker.concurrency=0"], "concurrency"),
        ("multi-node", ["gateway.autoscalng={}"], "autoscalng"),
        ("multi-node", ["drain.marginSeconds=1"], "marginSeconds"),
        ("ray", ['gateway.role="all"'], "gateway.role is gateway"),
        ("ray", ['ray.version=""'], "version"),
        ("multi-node", ['pools.gpu-8b.resources={"requests":{"cpu":"1"}}'], "memory"),
        ("laptop", ['gateway.autoscaling={"enabled":true,"by":"cron"}'], "by"),
        ("multi-node", ['settings={"DATABASE":"x"}'], "DATABASE"),
    ],
)
def test_values_that_make_no_sense_are_refused_by_name(name: str, settings: list[str], said: str) -> None:
    with pytest.raises(RenderError, match=said):
        render(VALUES[name], *settings)


@pytest.mark.parametrize(
    ("file", "right", "wrong"),
    [
        ("_pod.tpl", "terminationGracePeriodSeconds:", "terminationGracePeriodSecond:"),
        ("_pod.tpl", "failureThreshold: 150", "failureThreshold: many"),
        ("gateway.yaml", "apiVersion: policy/v1\n", "apiVersion: policy/v1beta1\n"),
    ],
)
def test_the_schemas_find_a_chart_that_is_wrong(tmp_path: Path, file: str, right: str, wrong: str) -> None:
    chart = tmp_path / "aio"
    shutil.copytree(CHART, chart)
    template = chart / "templates" / file
    assert right in template.read_text()
    template.write_text(template.read_text().replace(right, wrong))
    found = render(VALUES["laptop"], chart=chart)
    refused = (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError)
    with pytest.raises(refused):
        validate_all(found)


def test_every_value_is_in_the_schema_and_documented() -> None:
    values: dict[str, Any] = read_yaml(CHART / "values.yaml")
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert values.keys() == schema["properties"].keys() - {"global"}
    text = (CHART / "values.yaml").read_text()
    for key in values:
        assert text.split(f"\n{key}:")[0].splitlines()[-1].startswith("#"), key


def test_no_value_file_has_a_secret_in_it() -> None:
    for path in [CHART / "values.yaml", *VALUES.values()]:
        for text in strings(read_yaml(path)):
            assert not re.search(r"sha256:[0-9a-f]{8}|://[^/\s]*:[^/\s]*@", text)
