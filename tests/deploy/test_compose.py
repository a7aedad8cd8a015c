"""The compose file: valid by the published schema, complete, and closed where it should be."""

import json
import re
from importlib import resources
from typing import Any

import jsonschema
import pytest

from gateway.cli.serving.worker import worker
from gateway.settings import Settings, variable_of
from tests.deploy.files import DEPLOY, read_yaml, strings
from tiers.catalog.load import load_catalog

pytestmark = pytest.mark.deploy
FOLDER = DEPLOY / "compose"
COMPOSE: dict[str, Any] = read_yaml(FOLDER / "compose.yaml")
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = ("migrate", "core", "gateway", "worker")


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    """The compose specification's own schema."""
    vendored = resources.files("check_jsonschema.builtin_schemas.vendor") / "compose-spec.json"
    found: dict[str, Any] = json.loads(vendored.read_text(encoding="utf-8"))
    return found


def test_it_is_valid_by_the_specification(schema: dict[str, Any]) -> None:
    jsonschema.validate(COMPOSE, schema)


def test_a_field_that_the_specification_lacks_is_found(schema: dict[str, Any]) -> None:
    broken = COMPOSE | {"services": SERVICES | {"core": SERVICES["core"] | {"readonly": True}}}
    with pytest.raises(jsonschema.ValidationError, match="readonly"):
        jsonschema.validate(broken, schema)


def test_every_part_is_there_and_triton_only_when_asked_for() -> None:
    assert SERVICES.keys() >= {*OURS, "postgres", "redis", "prometheus", "grafana", "triton"}
    assert {name for name, service in SERVICES.items() if "profiles" in service} == {"triton"}


@pytest.mark.parametrize("name", OURS)
def test_our_containers_can_write_nothing_and_may_do_nothing(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.parametrize("name", SERVICES)
def test_images_have_whole_versions(name: str) -> None:
    assert re.search(r":v?\d+\.\d+", SERVICES[name]["image"])


@pytest.mark.parametrize("name", SERVICES)
def test_what_is_published_is_for_this_machine_alone(name: str) -> None:
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", []))
    assert name in ("gateway", "grafana") or SERVICES[name]["networks"] == ["backend"]
    assert COMPOSE["networks"]["backend"] == {"internal": True}


@pytest.mark.parametrize("name", SERVICES)
def test_files_that_are_mounted_exist(name: str) -> None:
    for volume in SERVICES[name].get("volumes", []):
        source = volume.split(":")[0]
        if source.startswith("."):
            assert (FOLDER / source).exists(), source
        else:
            assert source in COMPOSE["volumes"] or source.startswith("${"), source


def test_every_password_is_asked_for_and_none_is_written_down() -> None:
    for service in SERVICES.values():
        for name, value in service.get("environment", {}).items():
            if re.search("PASSWORD|KEYS|AUTH|URL", name):
                assert "${" in value, name
    asked = set(re.findall(r"\$\{(\w+):\?", " ".join(strings(SERVICES))))
    offered = set(re.findall(r"^(\w+)=", (FOLDER / "example.env").read_text(), flags=re.MULTILINE))
    assert asked <= offered


def test_what_it_sets_are_settings() -> None:
    named = {
        name for service in SERVICES.values() for name in service.get("environment", {}) if name.startswith("AIO_")
    }
    assert named <= {variable_of(field) for field in Settings.__struct_fields__}


def test_containers_are_given_longer_to_end_than_they_drain() -> None:
    drain = int(SERVICES["gateway"]["environment"]["AIO_DRAIN_SECONDS"])
    for name in ("gateway", "core", "worker"):
        assert int(SERVICES[name]["stop_grace_period"].removesuffix("s")) > drain


def test_the_database_is_migrated_before_the_gateway_starts() -> None:
    wanted = SERVICES["gateway"]["depends_on"]
    assert wanted["migrate"] == {"condition": "service_completed_successfully"}
    assert wanted["core"] == {"condition": "service_healthy"}
    assert "postgres" in SERVICES["migrate"]["depends_on"]


def test_batches_are_the_workers_and_it_starts_when_the_gateway_does() -> None:
    gateway, made = SERVICES["gateway"], SERVICES["worker"]
    options = worker.make_context("worker", made["command"][1:]).params
    assert options["batch_concurrency"] > int(gateway["environment"]["AIO_BATCH_CONCURRENCY"]) == 0
    assert (options["port"], options["role"]) == (8080, "gateway")
    assert made["depends_on"] == gateway["depends_on"]
    assert made["environment"] == gateway["environment"]


def test_prometheus_scrapes_what_is_there() -> None:
    config = read_yaml(DEPLOY / "prometheus" / "prometheus.yaml")
    targets = [t for job in config["scrape_configs"] for group in job["static_configs"] for t in group["targets"]]
    assert {"gateway:8080", "worker:8080"} <= set(targets)
    assert {target.split(":")[0] for target in targets} <= SERVICES.keys()
    mounted = {volume.split(":")[1] for volume in SERVICES["prometheus"]["volumes"]}
    assert set(config["rule_files"]) <= mounted


def test_the_catalogue_of_the_triton_profile_asks_its_server() -> None:
    remote = load_catalog(str(FOLDER / "triton.toml")).tier(4).remote
    assert remote is not None
    assert remote.is_triton
    assert remote.base_url == "http://triton:8000"
