"""The chart is closed by default: keys are made, named namespaces are admitted, and pods pass kube-linter's checks.

`POD_CHECKS` has the names of https://docs.kubelinter.io/#/generated/checks, and seccomp-profile. Left out:
no-anti-affinity (topology constraints spread the pods), limits of CPU time (they only throttle; requests are set),
probes of a RayService's nodes (KubeRay adds them) and read-secret-from-env-var (settings are the environment).
"""

import base64
import copy
import hashlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gateway.base.configuration import load_settings
from gateway.cli.serving.serve import serve
from gateway.tenancy.keys.key_secrets import ApiKeys
from tests.deploy.rendered_chart import (
    VALUES,
    Object,
    all_pods,
    containers,
    everything,
    of_kind,
    pods,
    render,
    rendered,
)

pytestmark = pytest.mark.deploy
SETS = [*VALUES, "default", "everything"]
# The images of a RayService are not ours and write to their home.
FOREIGN = "RayService/"


@pytest.fixture(scope="module")
def releases() -> dict[str, list[Object]]:
    made = {name: list(rendered(name)) for name in VALUES}
    return made | {"default": render(), "everything": everything()}


def security(pod: Object, container: Object) -> dict[str, Any]:
    """What holds for a container: its own context over the pod's."""
    found: dict[str, Any] = pod["spec"].get("securityContext", {}) | container.get("securityContext", {})
    return found


def probe_ports(container: Object, probe: str) -> list[Any]:
    asked = container.get(probe, {}).get("httpGet")
    return [] if asked is None else [asked["port"]]


def has_port(container: Object, port: Any) -> bool:
    return any(port in (given["containerPort"], given.get("name")) for given in container.get("ports", []))


PodCheck = Callable[[str, Object, Object], bool]
POD_CHECKS: dict[str, PodCheck] = {
    "run-as-non-root": lambda name, pod, c: (
        security(pod, c).get("runAsNonRoot") is True and security(pod, c).get("runAsUser", 0) >= 1000
    ),
    "no-read-only-root-fs": lambda name, pod, c: (
        name.startswith(FOREIGN) or security(pod, c).get("readOnlyRootFilesystem") is True
    ),
    "privilege-escalation-container": lambda name, pod, c: security(pod, c).get("allowPrivilegeEscalation") is False,
    "privileged-container": lambda name, pod, c: not security(pod, c).get("privileged"),
    "drop-net-raw-capability": lambda name, pod, c: security(pod, c).get("capabilities") == {"drop": ["ALL"]},
    "unsafe-proc-mount": lambda name, pod, c: "procMount" not in security(pod, c),
    "unsafe-sysctls": lambda name, pod, c: "sysctls" not in security(pod, c),
    "seccomp-profile": lambda name, pod, c: security(pod, c).get("seccompProfile") == {"type": "RuntimeDefault"},
    "host-network": lambda name, pod, c: not pod["spec"].get("hostNetwork"),
    "host-pid": lambda name, pod, c: not pod["spec"].get("hostPID"),
    "host-ipc": lambda name, pod, c: not pod["spec"].get("hostIPC"),
    "sensitive-host-mounts": lambda name, pod, c: not [v for v in pod["spec"].get("volumes", []) if "hostPath" in v],
    "access-to-secrets": lambda name, pod, c: pod["spec"].get("automountServiceAccountToken") is name.endswith("/head"),
    # A hook runs before the account is there; KubeRay makes that of a head.
    "default-service-account": lambda name, pod, c: (
        name == "Job/aio-migrate" or name.endswith("/head") or pod["spec"].get("serviceAccountName") == "aio"
    ),
    "deprecated-service-account-field": lambda name, pod, c: "serviceAccount" not in pod["spec"],
    "latest-tag": lambda name, pod, c: re.search(r":v?\d+\.\d+[\w.-]*$", c["image"]) is not None,
    "env-var-secret": lambda name, pod, c: (
        not [e for e in c.get("env", []) if re.search("(?i)secret|password|_keys?$", e["name"]) and "value" in e]
    ),
    "duplicate-env-var": lambda name, pod, c: len({e["name"] for e in c.get("env", [])}) == len(c.get("env", [])),
    "unset-cpu-requirements": lambda name, pod, c: "cpu" in c["resources"]["requests"],
    "unset-memory-requirements": lambda name, pod, c: all(
        "memory" in c["resources"][k] for k in ("requests", "limits")
    ),
    "ssh-port": lambda name, pod, c: not has_port(c, 22),
    "privileged-ports": lambda name, pod, c: all(port["containerPort"] > 1024 for port in c.get("ports", [])),
    "liveness-port": lambda name, pod, c: all(has_port(c, port) for port in probe_ports(c, "livenessProbe")),
    "readiness-port": lambda name, pod, c: all(has_port(c, port) for port in probe_ports(c, "readinessProbe")),
    "startup-port": lambda name, pod, c: all(has_port(c, port) for port in probe_ports(c, "startupProbe")),
    "no-liveness-probe": lambda name, pod, c: (
        c in pod["spec"].get("initContainers", [])
        or name.startswith((FOREIGN, "Job/", "CronJob/"))
        or {"livenessProbe", "readinessProbe"} <= c.keys()
    ),
}


def broken_pods(objects: list[Object], check: PodCheck) -> list[str]:
    return [
        f"{name}: {container['name']}"
        for name, pod in all_pods(objects).items()
        for container in containers(pod)
        if not check(name, pod, container)
    ]


@pytest.mark.parametrize("check", POD_CHECKS)
@pytest.mark.parametrize("name", SETS)
def test_pods_pass_kube_linters_checks(name: str, check: str, releases: dict[str, list[Object]]) -> None:
    assert all_pods(releases[name])
    assert broken_pods(releases[name], POD_CHECKS[check]) == []


@pytest.mark.parametrize(
    ("check", "breaks"),
    [
        ("run-as-non-root", lambda pod: pod["spec"]["securityContext"].pop("runAsNonRoot")),
        ("seccomp-profile", lambda pod: pod["spec"].pop("securityContext")),
        ("no-read-only-root-fs", lambda pod: containers(pod)[0]["securityContext"].pop("readOnlyRootFilesystem")),
        ("drop-net-raw-capability", lambda pod: containers(pod)[0]["securityContext"].pop("capabilities")),
        ("access-to-secrets", lambda pod: pod["spec"].pop("automountServiceAccountToken")),
        ("default-service-account", lambda pod: pod["spec"].pop("serviceAccountName")),
        ("latest-tag", lambda pod: containers(pod)[0].update(image="aio:latest")),
        ("env-var-secret", lambda pod: containers(pod)[0]["env"].append({"name": "AIO_API_KEYS", "value": "a=b"})),
        ("unset-memory-requirements", lambda pod: containers(pod)[0]["resources"]["limits"].clear()),
        ("liveness-port", lambda pod: containers(pod)[0]["ports"].clear()),
        ("no-liveness-probe", lambda pod: containers(pod)[0].pop("livenessProbe")),
        ("sensitive-host-mounts", lambda pod: pod["spec"]["volumes"].append({"name": "x", "hostPath": {"path": "/"}})),
        ("host-network", lambda pod: pod["spec"].update(hostNetwork=True)),
    ],
)
def test_each_of_these_checks_finds_what_breaks_it(check: str, breaks: Callable[[Object], Any]) -> None:
    objects = copy.deepcopy(list(rendered("laptop")))
    (pod,) = all_pods(objects).values()
    breaks(pod)
    assert broken_pods(objects, POD_CHECKS[check])


def policies_of(objects: list[Object], pod: Object) -> Iterator[Object]:
    """The network policies that select a pod."""
    labels = pod["metadata"]["labels"]
    for policy in of_kind(objects, "NetworkPolicy").values():
        wanted = policy["spec"]["podSelector"]
        listed = wanted.get("matchExpressions", [])
        if wanted["matchLabels"].items() <= labels.items() and all(
            labels.get(each["key"]) in each["values"] for each in listed
        ):
            yield policy


@pytest.mark.parametrize("name", SETS)
def test_no_pod_is_without_a_policy_of_what_reaches_it(name: str, releases: dict[str, list[Object]]) -> None:
    """kube-linter's non-isolated-pod."""
    for made, pod in all_pods(releases[name]).items():
        policies = list(policies_of(releases[name], pod))
        assert any("Ingress" in policy["spec"]["policyTypes"] for policy in policies), made


@pytest.mark.parametrize("name", SETS)
def test_policies_admit_named_namespaces_and_pods_alone(name: str, releases: dict[str, list[Object]]) -> None:
    for policy in of_kind(releases[name], "NetworkPolicy").values():
        for rule in policy["spec"].get("ingress", []):
            assert rule["from"], policy["metadata"]["name"]
            for peer in rule["from"]:
                namespace = peer.get("namespaceSelector")
                assert namespace is None or "kubernetes.io/metadata.name" in namespace["matchLabels"]
                assert namespace or peer["podSelector"]["matchLabels"]


@pytest.mark.parametrize("name", SETS)
def test_what_leaves_a_pod_has_a_destination_and_a_port(name: str, releases: dict[str, list[Object]]) -> None:
    for policy in of_kind(releases[name], "NetworkPolicy").values():
        for rule in policy["spec"].get("egress", []):
            assert rule["to"], policy["metadata"]["name"]
            # Ray's nodes take connections on ports of their own choice.
            to_ray = [p for p in rule["to"] if "ray-node" in str(p.get("podSelector"))]
            assert rule.get("ports") or to_ray == rule["to"]
            for peer in rule["to"]:
                assert peer.get("ipBlock", {}).get("cidr") not in ("0.0.0.0/0", "::/0")


def test_by_default_the_releases_own_namespace_is_admitted_and_others_by_their_names() -> None:
    def admitted(*settings: str) -> list[Any]:
        (rule,) = of_kind(render(*settings), "NetworkPolicy")["aio-gateway"]["spec"]["ingress"]
        return [
            peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
            if "namespaceSelector" in peer
            else peer
            for peer in rule["from"]
        ]

    assert admitted() == ["serving", "monitoring"]
    assert admitted('networkPolicy.namespaces=["web","jobs"]') == ["web", "jobs", "monitoring"]
    pod = {"podSelector": {"matchLabels": {"app": "x"}}}
    assert admitted('networkPolicy.callers=[{"podSelector":{"matchLabels":{"app":"x"}}}]') == [
        "serving",
        pod,
        "monitoring",
    ]


def decoded(objects: list[Object]) -> dict[str, str]:
    data = of_kind(objects, "Secret")["aio-keys"]["data"]
    return {name: base64.b64decode(value).decode() for name, value in data.items()}


def test_where_no_secret_is_named_keys_are_made_that_a_gateway_accepts() -> None:
    objects = render()
    made = decoded(objects)
    assert made.keys() == {"API_KEY", "ADMIN_KEY", "AIO_API_KEYS", "AIO_ADMIN_KEYS"}
    assert len({made["API_KEY"], made["ADMIN_KEY"], *decoded(render()).values()}) == 6, "each release has its own"
    for key, entry, name in (("API_KEY", "AIO_API_KEYS", "app"), ("ADMIN_KEY", "AIO_ADMIN_KEYS", "admin")):
        assert re.fullmatch(r"sk-aio-[A-Za-z0-9]{43}", made[key])
        assert made[entry] == f"{name}=sha256:{hashlib.sha256(made[key].encode()).hexdigest()}"
        assert ApiKeys.parse(made[entry], entry).owner(f"Bearer {made[key]}") == name
    (container,) = containers(pods(objects)["Deployment/aio-gateway-stable"])
    references = {e["name"]: e["valueFrom"]["secretKeyRef"] for e in container["env"] if "valueFrom" in e}
    assert {name: (r["name"], r["key"]) for name, r in references.items()} == {
        name: ("aio-keys", name) for name in ("AIO_API_KEYS", "AIO_ADMIN_KEYS")
    }
    # What the pod is given starts: an API key is there where it listens beyond the pod.
    environment = {e["name"]: e["value"] for e in container["env"] if "value" in e}
    options = serve.make_context("serve", container["args"][1:]).params
    settings = load_settings(environment | {name: made[name] for name in references}, role=options["role"])
    assert settings.api_keys
    assert not settings.insecure


def test_where_a_secret_is_named_none_is_made() -> None:
    for name in VALUES.keys() - {"laptop"}:
        # Certificates are no keys of callers.
        assert of_kind(rendered(name), "Secret").keys() <= {"aio-core-tls"}


def test_an_operator_who_wants_no_keys_gets_none_for_answers() -> None:
    (container,) = containers(pods(render('settings={"AIO_INSECURE":"true"}'))["Deployment/aio-gateway-stable"])
    given = {entry["name"] for entry in container["env"]}
    assert given >= {"AIO_INSECURE", "AIO_ADMIN_KEYS"}
    assert "AIO_API_KEYS" not in given


def test_rays_dashboard_is_reached_by_nothing_but_an_operator_that_needs_it(releases: dict[str, list[Object]]) -> None:
    cluster = of_kind(releases["ray"], "RayCluster")["aio-ray"]["spec"]
    assert cluster["headGroupSpec"]["rayStartParams"]["dashboard-host"] == "127.0.0.1"
    # KubeRay's Service has the ports of this container, or by default the dashboard's too.
    (head,) = cluster["headGroupSpec"]["template"]["spec"]["containers"]
    assert {port["name"] for port in head["ports"]} == {"gcs-server", "client"}
    policy = of_kind(releases["everything"], "NetworkPolicy")["aio-ray-services"]["spec"]
    admitted: dict[int, list[Any]] = {}
    for rule in policy["ingress"]:
        for port in rule.get("ports", []):
            admitted.setdefault(port["port"], []).extend(rule["from"])
    operator = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kuberay-system"}}}
    assert admitted[8265] == [operator]
    assert [peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for peer in admitted[8000][:2]] == [
        "gateway",
        "worker",
    ]
    for found in releases["everything"] + releases["ray"]:
        if found["kind"] in ("Service", "HTTPRoute"):
            assert "8265" not in str(found)


def test_a_gateway_may_ask_the_models_of_a_ray_service(releases: dict[str, list[Object]]) -> None:
    egress = of_kind(releases["everything"], "NetworkPolicy")["aio-gateway"]["spec"]["egress"]
    (rule,) = [rule for rule in egress if "ray-service" in str(rule)]
    assert rule["ports"] == [{"port": 8000, "protocol": "TCP"}]
