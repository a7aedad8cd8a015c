"""What `pip install .` takes and gives, in an empty environment: as much as the pages say, and a gateway over two
servers.
"""

import os
import re
import resource
import shutil
import subprocess
import sys
import tarfile
import time
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from gateway import __version__
from tests.deploy.files import ROOT
from tests.support.upstream import running_upstream

pytestmark = [pytest.mark.wheel, pytest.mark.timeout(900)]

# Bytes of files without what Python compiles, and memory as `ps` and `top` count it, which docs/deployment.md promises.
MOST_INSTALLED, MOST_RESIDENT = 190_000_000, 175 * 2**20
PIP = (sys.executable, "-m", "pip")
SAID = {
    "README.md": r"pip install \. +# the gateway: (\d+) MB on disk, about (\d+) s of processor time",
    "docs/index.md": r"pip install \. +# the gateway: (\d+) MB on disk, about (\d+) s of processor time",
    "docs/deployment.md": r"pip install aio-gateway +# a gateway before other servers; (\d+) MB on disk,",
}
READY = re.compile(r"AIO is ready on (http://\S+)")


def ran(*command: str | Path, **environment: str) -> str:
    """The output of a command that succeeds in an environment without our variables."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("AIO_", "PYTHON"))}
    done = subprocess.run(
        [str(part) for part in command], env=clean | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean checkout: builds leave their objects among the sources."""
    folder = tmp_path_factory.mktemp("source")
    for name in ran("git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard").splitlines():
        if not name.startswith(("tests/", "docs/", "benchmarks/")) and (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def wheel(source: Path, target: Path, **environment: str) -> Path:
    ran(*PIP, "wheel", source, "--no-deps", "--no-build-isolation", "--wheel-dir", target, **environment)
    [built] = target.glob("*.whl")
    return built


class Installation(NamedTuple):
    """The folder of an environment, what `pip install .` added to it on disk in bytes, and its processor seconds."""

    folder: Path
    on_disk: int
    processor_seconds: float


def on_disk(folder: Path) -> int:
    """Bytes of disk below a folder, as `du` counts them."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


@pytest.fixture(scope="module")
def installation(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """Kernels are compiled in it, as a user's are."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder)
    empty, begin = on_disk(folder), resource.getrusage(resource.RUSAGE_CHILDREN)
    ran(*PIP, "--python", folder / "bin" / "python", "install", "--quiet", source)
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime
    return Installation(folder, on_disk(folder) - empty, seconds)


@pytest.fixture(scope="module")
def installed(installation: Installation) -> Path:
    return installation.folder


def files(installed: Path) -> Iterator[Path]:
    """Installed files; not the compiled modules that Python adds."""
    [site] = installed.glob("lib/python3.*/site-packages")
    yield from (path for path in site.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def test_the_gateway_alone_is_small_and_holds_none_of_the_extras(installed: Path) -> None:
    found = list(files(installed))
    size = sum(path.stat().st_size for path in found)
    print(f"\ninstalled: {size / 1e6:.1f} MB in {len(found)} files")
    assert size < MOST_INSTALLED
    names = ran(*PIP, "--python", installed / "bin" / "python", "list", "--format", "freeze")
    assert not re.search(r"(?mi)^(torch|transformers|scikit-learn|scipy|tokenizers|gguf|llguidance|asyncpg)=", names)


def test_an_installation_takes_the_disk_and_the_time_that_the_pages_say(installation: Installation) -> None:
    print(f"\non disk: {installation.on_disk / 1e6:.1f} MB after {installation.processor_seconds:.1f} s of processors")
    for page, words in SAID.items():
        said = re.search(words, (ROOT / page).read_text())
        assert said is not None, page
        size, *seconds = map(float, said.groups())
        assert installation.on_disk / 1e6 == pytest.approx(size, rel=0.15), page
        # Processors differ, and a machine without a compiler compiles nothing: the order of magnitude is held.
        assert all(one / 3 < installation.processor_seconds < one * 3 for one in seconds), page


def test_a_ledger_is_reported_without_this_repository(installed: Path, tmp_path: Path) -> None:
    tiers = (f'[[tiers]]\nname = "{name}"\nurl = "http://127.0.0.1:9"\n' for name in ("small", "large"))
    (tmp_path / "aio.toml").write_text("".join(tiers))
    options = ("--catalog", tmp_path / "aio.toml", "--data-dir", tmp_path / "data")
    said = ran(installed / "bin" / "aio", "report", *options, PATH=str(tmp_path), HOME=str(tmp_path))
    assert said.startswith("What it costs")


@pytest.mark.parametrize("command", ["aio", "aio-gateway"])
def test_both_names_of_the_command_start_it(installed: Path, command: str) -> None:
    assert ran(installed / "bin" / command, "--version").strip() == f"aio {__version__}"


def test_the_kernels_are_compiled(installed: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no compiler here")
    checked = "from classifier.native import KERNELS; assert KERNELS; import inference_core.native._cpu"
    ran(installed / "bin" / "python", "-c", checked)


def test_two_servers_are_routed_between_from_a_catalogue_of_six_lines(installed: Path, tmp_path: Path) -> None:
    with running_upstream() as upstream:
        tiers = "".join(f'[[tiers]]\nname = "{name}"\nurl = "{upstream.base_url}"\n' for name in ("small", "large"))
        (tmp_path / "aio.toml").write_text(tiers)
        begin = time.monotonic()
        process = subprocess.Popen(
            [installed / "bin" / "aio", "serve", "--catalog", "aio.toml", "--data-dir", "data", "--port", "0"],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=(tmp_path / "log").open("w"),
            text=True,
        )
        try:
            assert process.stdout is not None
            url = next((match[1] for line in process.stdout if (match := READY.search(line))), None)
            assert url is not None, (tmp_path / "log").read_text()
            ready, used = time.monotonic() - begin, cpu_seconds(process.pid)
            body = {"model": "auto", "messages": [{"role": "user", "content": "What is the capital of Japan?"}]}
            answer = httpx.post(f"{url}/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-aio-tier"] in ("1", "2")
            resident = resident_bytes(process.pid)
        finally:
            process.terminate()
            process.wait(60)
    print(f"\nready after {ready:.2f} s, {used:.2f} s of CPU time; resident {resident / 1e6:.1f} MB")
    assert resident < MOST_RESIDENT


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_without_a_compiler_an_installation_succeeds_and_has_no_kernels(source: Path, tmp_path: Path) -> None:
    bare = tmp_path / "source"
    shutil.copytree(source, bare, ignore=shutil.ignore_patterns("build", "*.egg-info", "*.so"))
    built = wheel(bare, tmp_path / "wheel", CC="false", CXX="false")
    assert not [name for name in zipfile.ZipFile(built).namelist() if name.endswith(".so")]


def test_the_source_archive_holds_what_the_kernels_are_compiled_from(source: Path, tmp_path: Path) -> None:
    build = "import os, sys; os.chdir(sys.argv.pop(1)); exec(compile(open('setup.py').read(), 'setup.py', 'exec'))"
    ran(sys.executable, "-c", build, source, "-q", "sdist", "--dist-dir", tmp_path)
    [archive] = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        held = {name.partition("/")[2] for name in opened.getnames()}
    native = [p.relative_to(source).as_posix() for room in ("inference_core", "classifier")
              for p in (source / room / "native").iterdir() if p.suffix in (".cpp", ".h")]  # fmt: skip
    assert native
    assert {*native, "setup.py", "LICENSE", "README.md"} <= held
