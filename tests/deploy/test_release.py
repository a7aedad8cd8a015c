"""`make release`: its checksums and its list of parts fit its files, and the same source gives the same bytes."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from deploy.release import ReleaseError, checked_version, different_files, make_release, repack, write_sums
from gateway import __version__
from tests.deploy.files import ROOT

pytestmark = [pytest.mark.wheel, pytest.mark.timeout(900)]


def git(folder: Path, *words: str) -> None:
    people = {f"GIT_{who}_{what}": "someone" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = os.environ | people | {"GIT_COMMITTER_DATE": "2026-11-26T12:00:00Z"}
    subprocess.run(["git", "-C", folder, *words], env=environment, check=True, capture_output=True)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A commit of what is here now, committed or not; without the tests, which no package holds."""
    folder = tmp_path_factory.mktemp("checkout")
    words = ["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(words, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        if not name.startswith(("tests/", "benchmarks/", "docs/")) and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "all")
    return folder


@pytest.fixture(scope="module")
def tools() -> Path:
    folder = os.environ.get("RELEASE_TOOLS", "")
    if not folder:
        pytest.skip("run by `make test-wheel`, which installs the tools")
    return Path(folder)


@pytest.fixture(scope="module")
def released(checkout: Path, tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a release, without kernels, which take a minute to compile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", "false")
        patch.setenv("CC", "false")
        target = tmp_path_factory.mktemp("released") / "dist"
        assert make_release(checkout, target, tools) == __version__
    return target


@pytest.fixture(scope="module")
def parts(released: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((released / f"aio_gateway-{__version__}.cdx.json").read_text())
    return found


def test_a_release_is_an_sdist_a_wheel_a_list_of_parts_and_sums(released: Path) -> None:
    kinds = [re.sub(r"-[^-]+-[^-]+-[^-]+\.whl$", "-….whl", path.name) for path in sorted(released.iterdir())]
    name = f"aio_gateway-{__version__}"
    assert kinds == ["SHA256SUMS", f"{name}-….whl", f"{name}.cdx.json", f"{name}.tar.gz"]


def test_the_sums_are_those_of_every_other_file(released: Path) -> None:
    lines = [line.split("  ") for line in (released / "SHA256SUMS").read_text().splitlines()]
    files = [path for path in released.iterdir() if path.name != "SHA256SUMS"]
    assert {name: digest for digest, name in lines} == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=released, check=True, capture_output=True)


def test_the_list_names_the_release_and_every_package_that_it_installs(released: Path, parts: dict[str, Any]) -> None:
    assert parts["bomFormat"] == "CycloneDX"
    root = parts["metadata"]["component"]
    assert (root["name"], root["version"], root["type"]) == ("aio-gateway", __version__, "application")
    [wheel] = released.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        metadata = opened.read(next(name for name in opened.namelist() if name.endswith("/METADATA"))).decode()
    required = {
        re.split(r"[\[<>=!~; ]", line.partition(": ")[2])[0]
        for line in metadata.splitlines()
        if line.startswith("Requires-Dist") and "extra ==" not in line
    }
    listed = {one["name"].lower().replace("_", "-"): one for one in parts["components"]}
    assert required <= {*listed}
    direct = next(one["dependsOn"] for one in parts["dependencies"] if one["ref"] == root["bom-ref"])
    assert len(direct) == len(required)
    # Also what those require, and nothing that only builds or installs.
    assert "markupsafe" in listed
    assert not {"pip", "setuptools", "build", "cyclonedx-bom", "torch"} & {*listed}
    assert all(one["purl"].startswith("pkg:pypi/") for name, one in listed.items() if name != "aio-gateway")


def test_the_same_commit_gives_the_same_bytes(
    checkout: Path, tools: Path, released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "false")
    monkeypatch.setenv("CC", "false")
    monkeypatch.setattr("deploy.release.install", lambda wheel, environment: None)
    monkeypatch.setattr("deploy.release.smoke", lambda *arguments: None)
    monkeypatch.setattr("deploy.release.list_parts", lambda *arguments: None)
    again = tmp_path / "dist"
    make_release(checkout, again, tools)
    for path in again.glob("aio_gateway*"):
        assert path.read_bytes() == (released / path.name).read_bytes(), path.name


def test_two_wheels_differ_in_the_files_that_are_named(tmp_path: Path) -> None:
    def wheel(name: str, year: int, **files: str) -> Path:
        with zipfile.ZipFile(tmp_path / name, "w") as packed:
            for path, text in files.items():
                packed.writestr(zipfile.ZipInfo(path, (year, 1, 1, 0, 0, 0)), text)
        return tmp_path / name

    one = wheel("a.whl", 2030, same="x", other="x", only="x")
    assert different_files(one, wheel("b.whl", 2030, same="x", other="x", only="x")) == []
    assert different_files(one, wheel("c.whl", 2030, same="x", other="y")) == ["only", "other"]
    assert different_files(one, wheel("d.whl", 2031, same="x", other="x", only="x")) == ["a.whl"]


def test_a_release_whose_second_wheel_differs_is_none(
    checkout: Path, tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "false")
    monkeypatch.setenv("CC", "false")
    made = checkout / "setup.py"
    knows = 'import pathlib\npathlib.Path("gateway/built_in.py").write_text(f"FOLDER = {str(pathlib.Path.cwd())!r}")\n'
    made.write_text(knows + made.read_text())
    git(checkout, "commit", "--quiet", "--all", "--message", "a wheel that knows where it was built")
    try:
        with pytest.raises(ReleaseError, match=r"differ in .*gateway/built_in\.py"):
            make_release(checkout, tmp_path / "dist", tools)
    finally:
        git(checkout, "reset", "--quiet", "--hard", "HEAD~1")


def test_archives_of_equal_files_are_repacked_to_equal_bytes(tmp_path: Path) -> None:
    digests = set()
    for order, mode in ((("a", "b"), 0o600), (("b", "a"), 0o664)):
        archive = tmp_path / "one.tar.gz"
        with tarfile.open(archive, "w:gz") as packed:
            for name in order:
                (tmp_path / name).write_text(name)
                (tmp_path / name).chmod(mode)
                packed.add(tmp_path / name, name)
        repack(archive, 1_000_000_000)
        digests.add(hashlib.sha256(archive.read_bytes()).hexdigest())
    assert len(digests) == 1


def test_a_release_needs_its_heading_in_the_changelog_and_a_commit(tmp_path: Path) -> None:
    (tmp_path / "gateway").mkdir()
    (tmp_path / "gateway" / "__init__.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text("## Unreleased\n")
    with pytest.raises(ReleaseError, match=r"no heading `## 1\.2\.3"):
        checked_version(tmp_path)
    (tmp_path / "CHANGELOG.md").write_text("## Unreleased\n\n## 1.2.3 - 2026-11-26\n")
    git(tmp_path, "init", "--quiet")
    with pytest.raises(ReleaseError, match="uncommitted"):
        checked_version(tmp_path)
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message", "all")
    assert checked_version(tmp_path) == "1.2.3"


def test_sums_do_not_count_themselves(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    assert write_sums(tmp_path).read_text() == write_sums(tmp_path).read_text()
