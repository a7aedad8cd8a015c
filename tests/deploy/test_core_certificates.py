"""The chart's certificates for connections between gateways and cores, and what needs none."""

import base64
from pathlib import Path

import pytest

from inference_core.transport.tls import AUTHORITY, CERTIFICATE, CERTIFICATE_NAME, KEY, CertificateFolder
from tests.deploy.files import DEPLOY, read_yaml, strings
from tests.deploy.rendered_chart import VALUES, Object, RenderError, of_kind, pods, render, rendered

pytestmark = pytest.mark.deploy
SECRET = "aio-core-tls"
FOLDER = "/etc/aio/core-tls"


def with_certificates(objects: list[Object] | tuple[Object, ...]) -> dict[str, str]:
    """The Secret that each pod mounts, by the pod's owner; it has to be where its container's setting says."""
    found = {}
    for name, pod in pods(objects).items():
        for volume in pod["spec"]["volumes"]:
            if volume["name"] == "core-tls":
                (container,) = pod["spec"]["containers"]
                (mount,) = [each for each in container["volumeMounts"] if each["name"] == "core-tls"]
                assert (mount["mountPath"], mount["readOnly"]) == (FOLDER, True)
                found[name] = volume["secret"]["secretName"]
    return found


def setting(objects: list[Object] | tuple[Object, ...]) -> str | None:
    (gateway,) = pods(objects)["Deployment/aio-gateway-stable"]["spec"]["containers"]
    found: str | None = {each["name"]: each.get("value") for each in gateway["env"]}.get("AIO_CORE_TLS")
    return found


def test_the_certificates_that_the_chart_makes_are_those_that_cores_and_gateways_accept(tmp_path: Path) -> None:
    secret = of_kind(rendered("ray"), "Secret")[SECRET]
    assert secret["type"] == "kubernetes.io/tls"
    assert secret["data"].keys() == {AUTHORITY, CERTIFICATE, KEY}
    for name, content in secret["data"].items():
        (tmp_path / name).write_bytes(base64.b64decode(content))

    CertificateFolder(tmp_path)  # it shakes hands with itself


def test_gateways_and_nodes_with_cores_have_them_and_no_others() -> None:
    objects = rendered("ray")
    workers = {name for name in pods(objects) if name.startswith("RayCluster/") and not name.endswith("/head")}
    assert workers
    assert with_certificates(objects) == dict.fromkeys(workers | {"Deployment/aio-gateway-stable"}, SECRET)
    assert setting(objects) == FOLDER


def test_an_issuer_makes_and_renews_them_in_place_of_the_chart() -> None:
    objects = render(VALUES["ray"], 'ray.tls.issuer={"name":"internal","kind":"ClusterIssuer"}')
    assert SECRET not in of_kind(objects, "Secret")
    spec = of_kind(objects, "Certificate")[SECRET]["spec"]
    assert spec["secretName"] == SECRET
    assert spec["dnsNames"] == [CERTIFICATE_NAME]
    assert {"server auth", "client auth"} <= set(spec["usages"])
    assert spec["issuerRef"] == {"name": "internal", "kind": "ClusterIssuer"}
    assert set(with_certificates(objects).values()) == {SECRET}


def test_a_secret_of_your_own_is_used() -> None:
    objects = render(VALUES["ray"], 'ray.tls.secret="mine"')
    assert SECRET not in of_kind(objects, "Secret")
    assert set(with_certificates(objects).values()) == {"mine"}


def test_in_a_mesh_none_are_made() -> None:
    objects = render(VALUES["ray"], "ray.tls.enabled=false")
    assert SECRET not in of_kind(objects, "Secret")
    assert with_certificates(objects) == {}
    assert setting(objects) == "off"


@pytest.mark.parametrize("name", [name for name in VALUES if name != "ray"])
def test_where_cores_are_sidecars_there_is_nothing_to_encrypt(name: str) -> None:
    assert with_certificates(rendered(name)) == {}
    assert not any("AIO_CORE_TLS" in text for text in strings(list(rendered(name))))


def test_a_misspelt_issuer_is_refused() -> None:
    with pytest.raises(RenderError, match="kind"):
        render(VALUES["ray"], 'ray.tls.issuer={"name":"internal","kind":"Clusterissuer"}')


def test_in_compose_cores_are_reached_through_a_unix_socket() -> None:
    for file in ("compose.yaml", "gateway.yaml"):
        texts = set(strings(read_yaml(DEPLOY / "compose" / file)))
        assert not {text for text in texts if text.startswith(("AIO_CLUSTER", "--cluster"))}
