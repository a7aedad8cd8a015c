"""The workflows: valid by their schemas, with the least rights, and nothing published without a maintainer."""

import json
import re
import sys
import tomllib
from importlib import resources
from typing import Any

import jsonschema
import pytest

from gateway import __version__
from tests.deploy.files import ROOT, read_yaml, run

pytestmark = pytest.mark.deploy
FOLDER = ROOT / ".github" / "workflows"
WORKFLOWS: dict[str, dict[str, Any]] = {path.name: read_yaml(path) for path in sorted(FOLDER.glob("*.yml"))}
RELEASE: dict[str, Any] = WORKFLOWS["release.yml"]["jobs"]


def steps() -> list[dict[str, Any]]:
    return [step for flow in WORKFLOWS.values() for job in flow["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_is_valid_by_the_published_schema(name: str) -> None:
    vendored = resources.files("check_jsonschema.builtin_schemas.vendor") / "github-workflows.json"
    # YAML 1.1 reads the key `on` as true.
    document = {("on" if key is True else key): value for key, value in WORKFLOWS[name].items()}
    schema = json.loads(vendored.read_text(encoding="utf-8"))
    jsonschema.validate(document, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document | {"job": {}}, schema)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_may_only_read_unless_a_job_says_more(name: str) -> None:
    assert WORKFLOWS[name]["permissions"] == {"contents": "read"}
    more = {job: set(body.get("permissions", {})) for job, body in WORKFLOWS[name]["jobs"].items()}
    assert {job for job, rights in more.items() if rights} <= {"attest", "publish"}


def test_actions_are_of_a_version_and_leave_no_credentials_behind() -> None:
    used = [step for step in steps() if "uses" in step]
    assert all(re.search(r"@(v\d|release/v\d|[0-9a-f]{40}$)", step["uses"]) for step in used)
    checkouts = [step for step in used if step["uses"].startswith("actions/checkout@")]
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_ci_runs_what_runs_anywhere() -> None:
    assert ".ci/run" in [step.get("run") for step in WORKFLOWS["ci.yml"]["jobs"]["run"]["steps"]]
    assert (ROOT / ".ci" / "run").exists()


def test_only_an_attested_tag_that_a_maintainer_approves_is_published() -> None:
    assert RELEASE["publish"]["environment"] == "pypi"
    assert RELEASE["publish"]["needs"] == "attest"
    assert RELEASE["publish"]["if"] == "github.ref_type == 'tag'"
    assert set(RELEASE["attest"]["needs"]) == {"sdist", "wheels", "sbom"}
    assert RELEASE["publish"]["permissions"] == {"id-token": "write"}
    assert not [step for step in steps() if "password" in str(step) or "secrets." in str(step)]


def test_a_release_lists_what_every_image_contains_and_signs_it() -> None:
    (made,) = [step["run"] for step in RELEASE["sbom"]["steps"] if "run" in step]
    images = re.search(r"for image in (.*);", made)
    assert images is not None
    assert images[1].split() == ["slim", "cpu", "cuda"]
    assert "deploy/docker/locks/$image.lock" in made
    assert all((ROOT / "deploy" / "docker" / "locks" / f"{image}.lock").exists() for image in images[1].split())
    signed = {step["uses"].split("@")[0]: step["with"] for step in RELEASE["attest"]["steps"]}
    assert signed["actions/attest-build-provenance"] == {"subject-path": "dist/*"}
    assert signed["actions/attest-sbom"] == {"subject-path": "dist/*", "sbom-path": "sbom/slim.cdx.json"}
    # Packages alone are published.
    (fetched,) = [step["with"] for step in RELEASE["publish"]["steps"] if "download-artifact" in step["uses"]]
    assert fetched["pattern"] == "dist-*"


def test_the_version_has_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "gateway.__version__"}
    chart = read_yaml(ROOT / "deploy" / "helm" / "aio" / "Chart.yaml")
    assert chart["appVersion"] == __version__
    assert f"aio:{__version__}-" in (ROOT / "deploy" / "compose" / "compose.yaml").read_text()


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_wheels_are_built_for_every_python_on_both_machines(machine: str) -> None:
    pytest.importorskip("cibuildwheel")
    configured = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    schema = json.loads((resources.files("cibuildwheel.resources") / "cibuildwheel.schema.json").read_text())
    jsonschema.validate(configured, schema)
    listed = run(
        sys.executable, "-m", "cibuildwheel", "--platform", "linux", "--archs", machine,
        "--print-build-identifiers", ROOT,
    )  # fmt: skip
    assert listed.stdout.split() == [f"cp3{minor}-manylinux_{machine}" for minor in (11, 12, 13)], listed.stderr
