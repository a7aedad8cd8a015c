"""The images: the Dockerfile linter's findings, and our own rules for containers."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.base.configuration import variable_of
from gateway.base.settings import Settings
from tests.deploy.files import DEPLOY, ROOT, run
from tests.tiers.remote.recording_proxy import recording_proxy

pytestmark = pytest.mark.deploy
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
HADOLINT = Path(sys.executable).with_name("hadolint")


def instructions(text: str) -> list[tuple[str, str]]:
    """(instruction, rest), comments dropped and continued lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(w[0].upper(), w[1]) for line in joined.splitlines() if len(w := line.split(None, 1)) == 2]


def stages(text: str) -> dict[str, list[tuple[str, str]]]:
    """The instructions of each stage by its name, after those of its base stage."""
    found: dict[str, list[tuple[str, str]]] = {}
    name = ""
    for instruction, rest in instructions(text):
        if instruction == "FROM":
            base, _, name = rest.partition(" AS ")
            found[name] = list(found.get(base, []))
        found[name].append((instruction, rest))
    return found


def problems(text: str) -> list[str]:
    """Our own rules, which no linter knows."""
    found = []
    for name, steps in stages(text).items():
        for base in [rest for instruction, rest in steps if instruction == "FROM"]:
            image = base.split(" AS ")[0]
            if image not in stages(text) and not re.search(r":\d+\.\d+\.\d+", image):
                found.append(f"{name}: the base {image} is not pinned by a whole version")
        if name in ("slim", "cpu", "cuda"):
            users = [rest for instruction, rest in steps if instruction == "USER"]
            if not users or not re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", users[-1]):
                found.append(f"{name}: runs as {users[-1:]}")
            found += [f"{name}: no {wanted}" for wanted in ("HEALTHCHECK", "ENTRYPOINT") if wanted not in dict(steps)]
        for instruction, rest in steps:
            if instruction in ("ENV", "ARG") and re.search(r"(?i)(password|secret|token|_keys?\b)", rest):
                found.append(f"{name}: {rest} would stay in a layer")
    return found


def test_the_health_check_asks_no_proxy() -> None:
    command = next(
        rest for instruction, rest in stages(DOCKERFILE.read_text())["runtime"] if instruction == "HEALTHCHECK"
    )
    python, *arguments = json.loads(command.partition("CMD ")[2])
    assert python == "python"
    with recording_proxy() as proxy, recording_proxy() as server:
        code = arguments[1].replace("127.0.0.1:8080", server.place)
        variables = dict.fromkeys(("HTTP_PROXY", "http_proxy", "ALL_PROXY"), f"http://{proxy.place}")
        environment = {"PATH": os.environ["PATH"]} | variables
        for status, ended in ((200, 0), (503, 1)):
            server.status = status
            check = subprocess.run(
                [sys.executable, arguments[0], code], env=environment, capture_output=True, check=False
            )
            assert check.returncode == ended
        assert [line for line, _ in server.asked] == ["GET /health/live HTTP/1.1"] * 2
        assert proxy.asked == []


def test_the_linter_finds_nothing() -> None:
    found = run(HADOLINT, DOCKERFILE)
    assert found.returncode == 0, found.stdout


def test_the_linter_finds_what_is_wrong(tmp_path: Path) -> None:
    broken = tmp_path / "Dockerfile"
    broken.write_text(DOCKERFILE.read_text().replace("python:3.12.11-slim-bookworm", "python:latest"))
    found = run(HADOLINT, broken)
    assert found.returncode == 1
    assert "DL3007" in found.stdout


def test_images_run_unprivileged_from_pinned_bases_without_secrets() -> None:
    assert problems(DOCKERFILE.read_text()) == []


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("USER 10001:10001\n\n# The last", "USER 0:0\n\n# The last"),
        ("python:3.12.11-slim-bookworm AS runtime", "python:3.12 AS runtime"),
        ("AIO_PORT=8080", "AIO_PORT=8080 AIO_API_KEYS=app=abc"),
        ("HEALTHCHECK --interval", "LABEL --interval"),
    ],
)
def test_each_of_these_rules_finds_what_breaks_it(right: str, wrong: str) -> None:
    text = DOCKERFILE.read_text()
    assert right in text
    assert problems(text.replace(right, wrong))


def test_any_user_of_group_0_writes_where_a_container_writes() -> None:
    made = [rest for instruction, rest in stages(DOCKERFILE.read_text())["runtime"] if instruction == "RUN"]
    install = next(re.findall(r"install --directory [^&]*", step)[0] for step in made if "install --directory" in step)
    assert "--mode 0770" in install
    assert "--group 0 " in install
    assert all(folder in install for folder in ("/var/lib/aio", "/var/cache/aio", "/run/aio"))


def test_what_the_image_sets_are_settings() -> None:
    known = {variable_of(field) for field in Settings.__struct_fields__}
    named = set(re.findall(r"\bAIO_[A-Z_]+(?==)", DOCKERFILE.read_text()))
    assert named
    assert named <= known


def shipped() -> list[str]:
    """The packages of an installed program: all but the tests and the benchmarks."""
    return sorted({path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks"})


def test_the_context_is_the_packages_and_nothing_else() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines[1] == "*"
    allowed = {line[1:] for line in lines if line.startswith("!")}
    packages = set(shipped())
    assert packages <= allowed
    assert allowed - packages == {"LICENSE", "README.md", "deploy/docker/locks", "pyproject.toml", "setup.py"}
    assert all((ROOT / name).exists() for name in allowed)


def test_an_installed_program_has_every_file_of_its_packages(tmp_path: Path) -> None:
    """Images install a wheel; files missing from the package data exist in a checkout and are missing in a
    container."""
    packages = shipped()
    setup = "import os, sys; os.chdir(sys.argv.pop(1)); exec(compile(open('setup.py').read(), 'setup.py', 'exec'))"
    # Separate metadata: a checkout's metadata includes files that its package data omits.
    fresh = ("egg_info", "--egg-base", tmp_path)
    built = run(sys.executable, "-c", setup, ROOT, "-q", *fresh, "build_py", "--build-lib", tmp_path)
    assert built.returncode == 0, built.stderr
    # The kernels are installed compiled, and the packaged models fitted.
    sources, training = (".cpp", ".h"), "classifier/training/prompts/"
    every = run("git", "-C", ROOT, "ls-files", *packages).stdout.split()
    tracked = [path for path in every if not path.endswith(sources) and not path.startswith(training)]
    assert tracked
    assert [path for path in tracked if not (tmp_path / path).exists()] == []
