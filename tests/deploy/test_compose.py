"""The compose file: valid by the published schema, complete, and closed where it should be."""

import json
import os
import re
import subprocess
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gateway.base.configuration import load_settings, variable_of
from gateway.base.settings import Settings, SettingsError
from gateway.cli.serving.serve import worker
from gateway.processes.start_checks import refuse_open_access
from gateway.tenancy.keys.key_secrets import ApiKeys, keys_of
from tests.deploy.files import DEPLOY, ROOT, read_yaml, strings
from tiers.catalog.load import load_catalog

pytestmark = pytest.mark.deploy
FOLDER = DEPLOY / "compose"
COMPOSE: dict[str, Any] = read_yaml(FOLDER / "compose.yaml")
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = ("migrate", "core", "gateway", "worker")
# The same before other servers alone.
GATEWAY_ONLY: dict[str, Any] = read_yaml(FOLDER / "gateway.yaml")
SECRETS = "/etc/aio/secrets"


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    """The compose specification's own schema."""
    vendored = resources.files("check_jsonschema.builtin_schemas.vendor") / "compose-spec.json"
    found: dict[str, Any] = json.loads(vendored.read_text(encoding="utf-8"))
    return found


def test_it_is_valid_by_the_specification(schema: dict[str, Any]) -> None:
    jsonschema.validate(COMPOSE, schema)
    jsonschema.validate(GATEWAY_ONLY, schema)
    jsonschema.validate(read_yaml(ROOT / "compose.yaml"), schema)


def test_docker_compose_up_in_the_checkout_starts_it() -> None:
    assert read_yaml(ROOT / "compose.yaml") == {"include": ["deploy/compose/compose.yaml"]}


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
def test_no_container_gains_rights_and_none_is_privileged(name: str) -> None:
    service = SERVICES[name]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not service.keys() & {"privileged", "cap_add", "pid", "ipc", "userns_mode"}
    assert not [volume for volume in service.get("volumes", []) if "docker.sock" in str(volume)]


def test_what_compose_makes_starts_a_gateway_that_other_containers_reach(tmp_path: Path) -> None:
    made = written(tmp_path)
    environment = {"AIO_API_KEYS": f"app={made['api_key']}", "AIO_ADMIN_KEYS": f"admin={made['admin_key']}"}
    settings = load_settings(environment | {"AIO_HOST": "0.0.0.0"})
    refuse_open_access(settings)
    assert ApiKeys.parse(settings.admin_keys, "AIO_ADMIN_KEYS").owner(f"Bearer {made['admin_key']}") == "admin"
    # Every service that serves HTTP gets them; the core serves none.
    for name in ("gateway", "worker"):
        assert SERVICES[name]["entrypoint"] == ["sh", "/etc/aio/with-secrets.sh"]
    assert SERVICES["core"]["command"][:3] == ["serve", "--role", "core"]
    with pytest.raises(SettingsError, match="AIO_INSECURE"):
        refuse_open_access(load_settings({"AIO_HOST": "0.0.0.0", "AIO_DATA_DIR": str(tmp_path)}))


@pytest.mark.parametrize("name", SERVICES)
def test_images_have_whole_versions(name: str) -> None:
    assert re.search(r":v?\d+\.\d+", SERVICES[name]["image"])


@pytest.mark.parametrize("name", SERVICES)
def test_what_is_published_is_for_this_machine_alone(name: str) -> None:
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", []))
    closed = SERVICES[name].get("networks") == ["backend"] or SERVICES[name].get("network_mode") == "none"
    assert name in ("gateway", "grafana") or closed
    assert COMPOSE["networks"]["backend"] == {"internal": True}


@pytest.mark.parametrize("name", SERVICES)
def test_files_that_are_mounted_exist(name: str) -> None:
    for volume in SERVICES[name].get("volumes", []):
        source = volume.split(":")[0]
        if source.startswith("."):
            assert (FOLDER / source).exists(), source
        else:
            assert source in COMPOSE["volumes"] or source.startswith("${"), source


def test_no_password_is_written_down_and_none_has_to_be_given() -> None:
    for service in [*SERVICES.values(), *GATEWAY_ONLY["services"].values()]:
        for name, value in service.get("environment", {}).items():
            if re.search("PASSWORD|KEYS|AUTH|URL", name):
                assert value.startswith(("${", SECRETS)), name
                assert ":?" not in value, name
    used = set(re.findall(r"\$\{(\w+):", " ".join(strings([SERVICES, GATEWAY_ONLY]))))
    offered = set(re.findall(r"^(\w+)=", (FOLDER / "example.env").read_text(), flags=re.MULTILINE))
    assert used - {"AIO_WEIGHTS", "TRITON_MODELS"} == offered


def of_metrics(folder: Path) -> Path:
    """The folder for Prometheus alone."""
    return folder.with_name(f"{folder.name}-metrics")


def written(folder: Path, **given: str) -> dict[str, str]:
    """The passwords and the keys after a start."""
    of_metrics(folder).mkdir(exist_ok=True)
    subprocess.run(["sh", FOLDER / "make-secrets.sh", folder, of_metrics(folder)], env=os.environ | given, check=True)
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_passwords_are_random_and_kept_and_given_ones_replace_them(tmp_path: Path) -> None:
    first = written(tmp_path)
    assert first.keys() == {"postgres", "redis", "grafana", "api_key", "admin_key", "metrics_key"}
    assert len(set(first.values())) == 6
    assert all(re.fullmatch(r"(sk-aio-)?[0-9a-f]{48}", value) for value in first.values())
    assert written(tmp_path) == first
    assert written(tmp_path, REDIS_PASSWORD="mine") == first | {"redis": "mine"}


@pytest.mark.parametrize("given", [{}, {"AIO_API_KEYS": "web=sha256:00", "AIO_DATABASE_URL": "sqlite:////x"}])
def test_our_programs_get_their_urls_and_keys_from_those_files(tmp_path: Path, given: dict[str, str]) -> None:
    made = written(tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "aio").write_text("#!/bin/sh\nenv\necho arguments=$*\n")
    (tmp_path / "bin" / "aio").chmod(0o755)
    environment = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "AIO_SECRETS": str(tmp_path), "AIO_API_KEYS": ""}
    ran = subprocess.run(
        ["sh", FOLDER / "with-secrets.sh", "serve", "--role", "gateway"],
        env=environment | given, capture_output=True, text=True, check=True,
    )  # fmt: skip
    got = dict(line.split("=", 1) for line in ran.stdout.splitlines() if line.startswith(("AIO_", "arguments")))
    assert (
        got
        == {
            "AIO_DATABASE_URL": f"postgresql://aio:{made['postgres']}@postgres/aio",
            "AIO_REDIS_URL": f"redis://:{made['redis']}@redis:6379/0",
            "AIO_API_KEYS": f"app={made['api_key']}",
            "AIO_ADMIN_KEYS": f"admin={made['admin_key']}",
            "AIO_VIEWER_KEYS": f"prometheus={made['metrics_key']}",
            "arguments": "serve --role gateway",
        }
        | given
    )


def test_every_service_that_reads_a_password_waits_until_it_is_made() -> None:
    def waits(services: dict[str, Any], name: str) -> bool:
        depends = services[name].get("depends_on", {})
        return "secrets" in depends or any(waits(services, other) for other in depends)

    for name, service in SERVICES.items():
        mounts = [str(volume) for volume in service.get("volumes", [])]
        if any(SECRETS in mount for mount in mounts):
            assert waits(SERVICES, name), name
            assert f"secrets:{SECRETS}:ro" in mounts
    assert not [mount for mount in SERVICES["core"]["volumes"] if SECRETS in mount]
    assert SERVICES["postgres"]["depends_on"] == SERVICES["redis"]["depends_on"]


def test_the_gateway_before_other_servers_is_the_small_image_and_as_closed_as_the_other() -> None:
    services = GATEWAY_ONLY["services"]
    assert services["gateway"]["build"]["target"] == "slim"
    for field in ("read_only", "cap_drop", "security_opt", "ports", "entrypoint", "stop_grace_period"):
        assert services["gateway"][field] == SERVICES["gateway"][field]
    assert {name: service["extends"]["service"] for name, service in services.items() if "extends" in service} == {
        name: name for name in ("secrets", "postgres", "redis")
    }
    named = set(services["gateway"]["environment"])
    assert named <= {variable_of(field) for field in Settings.__struct_fields__}


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


def test_prometheus_can_read_a_key_that_may_only_look_and_no_other_secret(tmp_path: Path) -> None:
    made = written(tmp_path)
    assert {path.name: path.read_text() for path in of_metrics(tmp_path).iterdir()} == {
        "metrics_key": made["metrics_key"]
    }
    jobs = {job["job_name"]: job for job in read_yaml(DEPLOY / "prometheus" / "prometheus.yaml")["scrape_configs"]}
    mounted = dict(volume.split(":")[:2] for volume in SERVICES["prometheus"]["volumes"])
    assert jobs["aio"]["authorization"] == {"credentials_file": f"{mounted['metrics-key']}/metrics_key"}
    assert "secrets" not in mounted
    assert SERVICES["secrets"]["entrypoint"][2:] == ["/secrets", "/metrics-key"]
    assert {"secrets:/secrets", "metrics-key:/metrics-key"} <= set(SERVICES["secrets"]["volumes"])
    assert [name for name, service in SERVICES.items() if "metrics-key" in str(service.get("volumes"))] == [
        "secrets", "prometheus",
    ]  # fmt: skip
    assert SERVICES["prometheus"]["depends_on"] == SERVICES["redis"]["depends_on"]
    viewers = keys_of(load_settings({"AIO_VIEWER_KEYS": f"prometheus={made['metrics_key']}"})).viewers
    assert viewers.owner(f"Bearer {made['metrics_key']}") == "prometheus"


def test_the_catalogue_of_the_triton_profile_asks_its_server() -> None:
    remote = load_catalog(str(FOLDER / "triton.toml")).tier(4).remote
    assert remote is not None
    assert remote.is_triton
    assert remote.base_url == "http://triton:8000"
