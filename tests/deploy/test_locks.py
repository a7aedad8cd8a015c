"""The images' locks: every pin has hashes, satisfies pyproject.toml, and is what the Dockerfile installs."""

import re
import tomllib
from functools import cache

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.deploy.files import DEPLOY, ROOT
from tests.deploy.test_images import DOCKERFILE, instructions

pytestmark = pytest.mark.deploy
LOCKS = {path.stem: path for path in sorted((DEPLOY / "docker" / "locks").glob("*.lock"))}
# The extras that an image or EXTRAS installs, by the locks that it installs; an extra's lock goes on top of an image's.
IMAGES = {"slim": ["server"], "cpu": ["local", "server", "train"], "cuda": ["gpu", "server", "train"]}
EXTRAS = ["oidc", "providers"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MACHINES = ["x86_64", "aarch64"]


def entries(name: str) -> list[tuple[Requirement, list[str]]]:
    """The pins of a lock, each with its hashes."""
    text = "\n".join(line for line in LOCKS[name].read_text().splitlines() if not line.lstrip().startswith("#"))
    joined = text.replace("\\\n", " ")
    return [
        (Requirement(line.split(" --hash")[0].strip()), re.findall(r"--hash=sha256:([0-9a-f]{64})\b", line))
        for line in joined.splitlines()
        if line.strip()
    ]


def in_image(machine: str) -> dict[str, str]:
    """What markers are about in a container."""
    found = {name: str(value) for name, value in default_environment().items()}
    python = re.search(r"FROM python:((\d+\.\d+)\.\d+)", DOCKERFILE.read_text())
    assert python is not None
    return found | {
        "python_version": python[2],
        "python_full_version": python[1],
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": machine,
        "implementation_name": "cpython",
        "extra": "",
    }


def applies(requirement: Requirement, machine: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate(in_image(machine))


def pins(name: str, machine: str) -> dict[str, Version]:
    found: dict[str, Version] = {}
    for requirement, _ in entries(name):
        if applies(requirement, machine):
            (specifier,) = requirement.specifier
            assert specifier.operator == "=="
            assert canonicalize_name(requirement.name) not in found, requirement
            found[canonicalize_name(requirement.name)] = Version(specifier.version)
    return found


@cache
def wanted(*extras: str) -> tuple[Requirement, ...]:
    """What pyproject.toml asks for with these extras, those that they name included."""
    found = [Requirement(line) for line in PROJECT["dependencies"]]
    for extra in extras:
        for line in PROJECT["optional-dependencies"][extra]:
            requirement = Requirement(line)
            own = requirement.name == PROJECT["name"]
            found += wanted(*sorted(requirement.extras)) if own else [requirement]
    return tuple(dict.fromkeys(found))


def unsatisfied(found: dict[str, Version], machine: str, *extras: str) -> list[str]:
    return [
        f"{requirement}: {found.get(canonicalize_name(requirement.name))}"
        for requirement in wanted(*extras)
        if applies(requirement, machine)
        and not (
            (version := found.get(canonicalize_name(requirement.name))) is not None
            and requirement.specifier.contains(version)
        )
    ]


def torch_of_the_cpu_image() -> Version:
    (named,) = re.findall(r"--index-url \S+ torch==(\S+)", DOCKERFILE.read_text())
    return Version(named)


@pytest.mark.parametrize("name", LOCKS)
def test_every_pin_has_hashes_and_no_other_source(name: str) -> None:
    assert entries(name)
    assert [str(requirement) for requirement, hashes in entries(name) if not hashes or requirement.url] == []
    assert not re.search(r"index-url|find-links|://", LOCKS[name].read_text())


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("image", IMAGES)
def test_an_image_has_what_the_project_asks_for(image: str, machine: str) -> None:
    found = pins(image, machine)
    if image == "cpu":
        assert "torch" not in found, "the wheels of its index have other hashes"
        assert not [name for name in found if name.startswith("nvidia-")]
        found |= {"torch": torch_of_the_cpu_image()}
    assert unsatisfied(found, machine, *IMAGES[image]) == []
    for extra in EXTRAS:
        assert unsatisfied(found | pins(extra, machine), machine, *IMAGES[image], extra) == []
    if image != "slim":
        assert unsatisfied(found | pins("ray", machine), machine, *IMAGES[image], "ray") == []


def test_a_pin_that_the_project_excludes_is_found() -> None:
    found = pins("slim", "x86_64")
    assert unsatisfied(found | {"litestar": Version("1.0")}, "x86_64", "server") == ["litestar<3,>=2.25: 1.0"]
    del found["uvloop"]
    assert len(unsatisfied(found, "x86_64", "server")) == 1


def test_images_and_extras_agree_on_versions() -> None:
    known: dict[str, Version] = {}
    for name in LOCKS:
        for package, version in pins(name, "x86_64").items():
            assert known.setdefault(package, version) == version, f"{package} of {name}"
    assert known["torch"] == torch_of_the_cpu_image()


def test_the_dockerfile_installs_nothing_without_a_hash_but_torch_for_cpus_and_ourselves() -> None:
    commands = [rest for instruction, rest in instructions(DOCKERFILE.read_text()) if instruction == "RUN"]
    installs = [part for rest in commands for part in re.findall(r"pip install ([^&|;]*)", rest)]
    assert len(installs) > 6
    locked = [part for part in installs if "--require-hashes" in part.split()]
    others = [part for part in installs if part not in locked]
    assert [part for part in others if "torch==" not in part and part.split()[-1] != "."] == []
    # Dependencies come from the locks, and from nowhere else.
    assert all("--no-deps" in part.split() for part in installs if "locks/build.lock" not in part)
    named = {name for part in locked for name in re.findall(r"locks/([\w$]+)\.lock", part)}
    assert named == {"build", "weights", "$extra", *IMAGES}
    assert set(LOCKS) == (named - {"$extra"}) | {"ray", *EXTRAS}
