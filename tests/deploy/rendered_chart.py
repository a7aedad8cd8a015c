"""helm, and the objects that it renders from the chart, by kind and name."""

import functools
import importlib.util
import io
import os
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.files import DEPLOY, run

CHART = DEPLOY / "helm" / "aio"
VALUES = {path.stem: path for path in sorted((CHART / "values").glob("*.yaml"))}
Object = dict[str, Any]


@functools.cache
def helm() -> Path:
    """The binary, from the package that contains it (see the Makefile); unpacked once per environment."""
    found = Path(sys.prefix) / "helm"
    if found.exists():
        return found
    spec = importlib.util.find_spec("aws_cdk")
    assert spec is not None, "run `make test-deploy`, which installs helm"
    folders = [Path(path) for path in spec.submodule_search_locations or []]
    archive = next(path for folder in folders for path in folder.glob("lambda_layer_kubectl_*/_jsii/*.tgz"))
    with tarfile.open(archive) as package:
        layer = package.extractfile("package/lib/layer.zip")
        assert layer is not None
        binary = zipfile.ZipFile(io.BytesIO(layer.read())).read("helm/helm")
    part = found.with_name(f"helm.{os.getpid()}")
    part.write_bytes(binary)
    part.chmod(0o755)
    os.replace(part, found)
    return found


class RenderError(AssertionError):
    """helm's error message."""


def render(*values: Path | str, release: str = "aio", chart: Path = CHART) -> list[Object]:
    """The objects of a release from value files and `key=value` settings. Raises `RenderError`."""
    options: list[str] = []
    for value in values:
        options += ["--values", str(value)] if isinstance(value, Path) else ["--set-json", value]
    done = run(helm(), "template", release, chart, "--namespace", "serving", "--kube-version", "1.33.0", *options)
    if done.returncode != 0:
        raise RenderError(done.stderr)
    return [document for document in yaml.safe_load_all(done.stdout) if document]


@functools.cache
def rendered(name: str) -> tuple[Object, ...]:
    """The objects of one of the chart's own value files."""
    return tuple(render(VALUES[name]))


def everything() -> list[Object]:
    """A release with every option on that is off in the value files."""
    return render(VALUES["multi-node"], DEPLOY.parent / "tests" / "deploy" / "everything.yaml")


def of_kind(objects: list[Object] | tuple[Object, ...], kind: str) -> dict[str, Object]:
    """Objects of a kind by name."""
    return {found["metadata"]["name"]: found for found in objects if found["kind"] == kind}


def pods(objects: list[Object] | tuple[Object, ...]) -> dict[str, Object]:
    """Pod templates by their owner's name, except a RayService's, whose images are not ours."""
    made: dict[str, Object] = {}
    for found in objects:
        name, spec = f"{found['kind']}/{found['metadata']['name']}", found.get("spec", {})
        if found["kind"] in ("Deployment", "StatefulSet", "Job"):
            made[name] = spec["template"]
        elif found["kind"] == "CronJob":
            made[name] = spec["jobTemplate"]["spec"]["template"]
        elif found["kind"] == "RayCluster":
            groups = {"head": spec["headGroupSpec"]} | {group["groupName"]: group for group in spec["workerGroupSpecs"]}
            made |= {f"{name}/{group}": given["template"] for group, given in groups.items()}
    return made


def all_pods(objects: list[Object] | tuple[Object, ...]) -> dict[str, Object]:
    """The same with those of every RayService."""
    made = pods(objects)
    for name, found in of_kind(objects, "RayService").items():
        spec = found["spec"]["rayClusterConfig"]
        groups = {"head": spec["headGroupSpec"]} | {group["groupName"]: group for group in spec["workerGroupSpecs"]}
        made |= {f"RayService/{name}/{group}": given["template"] for group, given in groups.items()}
    return made


def containers(pod: Object) -> list[Object]:
    """All containers of a pod, sidecars first."""
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
