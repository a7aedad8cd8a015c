"""Makes the files of a release from the commit that is checked out: `make release`.

An sdist, the wheel that it builds on this machine, a list of what that wheel installs (CycloneDX) and SHA-256 sums. The
wheel is built twice, in folders of different names, to the same bytes, installed in an empty environment and asked for
an answer before anything is listed. The same commit gives the same sdist; it gives the same wheel with the same
compiler, and the same list while the index has the same versions.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

from tests.support.upstream import running_upstream

ROOT = Path(__file__).parents[1]
SUMS = "SHA256SUMS"


class ReleaseError(Exception):
    """Something that a maintainer has to mend first."""


def checked_version(root: Path) -> str:
    """Return the version of the code. Raises `ReleaseError` if the changelog does not date it, or something is not
    committed."""
    found = re.search(r'^__version__ = "(.+)"$', (root / "gateway" / "__init__.py").read_text(), re.MULTILINE)
    if found is None:
        raise ReleaseError("gateway/__init__.py names no version")
    heading = rf"^## {re.escape(found[1])} - \d{{4}}-\d\d-\d\d$"
    if not re.search(heading, (root / "CHANGELOG.md").read_text(), re.MULTILINE):
        raise ReleaseError(f"CHANGELOG.md has no heading `## {found[1]} - YYYY-MM-DD`")
    if ran("git", "-C", root, "status", "--porcelain"):
        raise ReleaseError("there are uncommitted changes: a release is made of a commit")
    return found[1]


def ran(*command: str | Path, cwd: Path | None = None, **environment: str) -> str:
    """Return the output of a command that succeeds, without AIO's and Python's variables. Raises `ReleaseError`."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("AIO_", "PYTHON"))}
    kept = {name: value for name, value in os.environ.items() if name == "AIO_KERNELS"}
    words, given = [str(part) for part in command], clean | kept | environment
    done = subprocess.run(words, env=given, cwd=cwd, capture_output=True, text=True, check=False)  # noqa: S603 - our own
    if done.returncode:
        raise ReleaseError(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def build(source: Path, target: Path, epoch: int, tools: Path) -> list[Path]:
    """Build the sdist of a folder, and the wheel of what the sdist holds; `epoch`: the time that files get, in seconds.
    `tools`: the environment of the group `release`. Raises `ReleaseError` if a second wheel has other bytes."""
    target.mkdir(parents=True)
    python, times = tools / "bin" / "python", {"SOURCE_DATE_EPOCH": str(epoch)}
    ran(python, "-m", "build", "--no-isolation", "--sdist", "--outdir", target, source, **times)
    [sdist] = target.glob("*.tar.gz")
    repack(sdist, epoch)
    for place in (target, target / "again"):
        with tempfile.TemporaryDirectory(suffix=f"-{place.name}") as folder:
            with tarfile.open(sdist) as archive:
                archive.extractall(folder, filter="data")
            [unpacked] = Path(folder).iterdir()
            ran(python, "-m", "build", "--no-isolation", "--wheel", "--outdir", place, unpacked, **times)
    [wheel], [second] = target.glob("*.whl"), (target / "again").glob("*.whl")
    if differing := different_files(wheel, second):
        raise ReleaseError(f"two builds of the wheel differ in {', '.join(differing)}")
    shutil.rmtree(target / "again")
    return [sdist, wheel]


def different_files(wheel: Path, other: Path) -> list[str]:
    """Return the files in which two wheels differ, their name if only the archives do; empty for equal bytes."""
    if wheel.read_bytes() == other.read_bytes():
        return []
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(other) as two:
        names = sorted({*one.namelist(), *two.namelist()})
        found = [name for name in names if _content(one, name) != _content(two, name)]
    return found or [wheel.name]


def _content(archive: zipfile.ZipFile, name: str) -> bytes | None:
    return archive.read(name) if name in archive.namelist() else None


def repack(sdist: Path, epoch: int) -> None:
    """Give an archive's files one order, owner and time, which depend on nothing but their content."""
    content = io.BytesIO()
    with tarfile.open(sdist) as old, tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda one: one.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    with sdist.open("wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=epoch) as packed:
        packed.write(content.getvalue())


def install(wheel: Path, environment: Path) -> None:
    """Install a wheel with what it requires in an empty environment, which has not even pip."""
    ran(sys.executable, "-m", "venv", "--without-pip", "--clear", environment)
    ran(sys.executable, "-m", "pip", "--quiet", "--python", environment / "bin" / "python", "install", wheel)


def smoke(environment: Path, version: str, folder: Path) -> None:
    """Ask the installed `aio` for its version, and for an answer of each of two servers on loopback."""
    aio = environment / "bin" / "aio"
    said = ran(aio, "--version", cwd=folder).strip()
    if said != f"aio {version}":
        raise ReleaseError(f"the installed wheel says {said!r}, not aio {version}")
    with running_upstream() as upstream:
        entry = '[[tiers]]\nname = "{0}"\nmodel = "{0}"\nurl = "{1}"\n'
        catalog = "".join(entry.format(name, upstream.base_url) for name in ("small", "large"))
        (folder / "aio.toml").write_text(catalog)
        ran(aio, "check", "--catalog", "aio.toml", "--data-dir", "data", cwd=folder, HOME=str(folder))


def list_parts(environment: Path, version: str, root: Path, target: Path, tools: Path) -> Path:
    """Write what an environment has installed as CycloneDX in JSON; `root`: the sources, which name direct ones."""
    direct = tomllib.loads((root / "pyproject.toml").read_text())["project"]["dependencies"]
    made = target / f"aio_gateway-{version}.cdx.json"
    with tempfile.TemporaryDirectory() as folder:
        # No more than that: the tool reads no version that is dynamic.
        component = Path(folder) / "pyproject.toml"
        project = {"name": "aio-gateway", "version": version, "dependencies": direct}
        lines = [f"{field} = {json.dumps(value)}\n" for field, value in project.items()]
        component.write_text("".join(["[project]\n", *lines]))
        ran(
            tools / "bin" / "cyclonedx-py", "environment", environment / "bin" / "python", "--pyproject", component,
            "--mc-type", "application", "--output-reproducible", "--output-format", "JSON", "--output-file", made,
        )  # fmt: skip
    return made


def write_sums(target: Path) -> Path:
    """Write the SHA-256 of every file of a folder, as `sha256sum --check` reads it."""
    files = sorted(path for path in target.iterdir() if path.name != SUMS)
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (target / SUMS).write_text("".join(lines))
    return target / SUMS


def make_release(root: Path, target: Path, tools: Path) -> str:
    """Make the files of a release in an empty folder; return its version. Raises `ReleaseError`."""
    version = checked_version(root)
    epoch = int(ran("git", "-C", root, "log", "-1", "--format=%ct"))
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        source, place = Path(folder) / "source", Path(folder) / "smoke"
        source.mkdir()
        place.mkdir()
        ran("git", "-C", root, "archive", "--output", Path(folder) / "source.tar", "HEAD")
        with tarfile.open(Path(folder) / "source.tar") as archive:
            archive.extractall(source, filter="data")
        _, wheel = build(source, target, epoch, tools)
        environment = Path(folder) / "environment"
        install(wheel, environment)
        smoke(environment, version, place)
        list_parts(environment, version, source, target, tools)
    write_sums(target)
    return version


def main() -> None:
    """Make the release of this checkout."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path, help="folder of the files; what is in it is removed")
    parser.add_argument("--tools", type=Path, required=True, help="environment of the dependency group `release`")
    given = parser.parse_args()
    try:
        version = make_release(ROOT, given.target.absolute(), given.tools.absolute())
    except ReleaseError as error:
        sys.exit(f"no release: {error}")
    print(
        f"{version}, in {given.target}; two builds of the wheel are equal:\n{(given.target / SUMS).read_text()}", end=""
    )


if __name__ == "__main__":
    main()
