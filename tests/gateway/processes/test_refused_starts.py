"""A start that cannot work ends at once, with status 1 and one sentence that says what to do."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from gateway.base.configuration import SERVED_CATALOG
from tests.ports import held_port
from tests.support.served import ServedProcess, served
from tests.support.upstream import Upstream, write_remote_catalog

pytestmark = pytest.mark.processes

_AIO = (sys.executable, "-c", "from gateway.cli import main; main()")
_TIERS = ("--tier", "a=openai:gpt-4o-mini", "--tier", "b=openai:gpt-4o")
_READ_ONLY = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"'


@pytest.fixture
def catalog(upstream: Upstream, tmp_path: Path) -> str:
    return str(write_remote_catalog(tmp_path / "catalog.toml", upstream.base_url))


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[tuple[Path, list[str]]]:
    """A folder that cannot be written, and the prefix of a command that sees it so: root may write whatever modes
    say, so it gets a read-only mount, which ends with its process."""
    folder = tmp_path / "read-only"
    folder.mkdir()
    if os.geteuid():
        folder.chmod(0o500)
        yield folder, []
        folder.chmod(0o700)
        return
    prefix = ["unshare", "--mount", "sh", "-c", _READ_ONLY, "sh", str(folder)]
    if shutil.which("unshare") is None or subprocess.run([*prefix, "true"], capture_output=True).returncode:
        pytest.skip("root can mount nothing here, and modes do not bind it")
    yield folder, prefix


def refusal(
    *words: str, settings: Mapping[str, str], started_with: list[str] | None = None, cwd: Path | None = None
) -> str:
    """Run `aio`, which must end with status 1 and one line that is no traceback; return that line."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AIO_", "XDG_"))}
    command = [*(started_with or []), *_AIO, *words]
    ended = subprocess.run(
        command, env=inherited | dict(settings), capture_output=True, text=True, timeout=200, cwd=cwd
    )
    assert ended.returncode == 1, ended.stderr
    assert ended.stderr.startswith("Error: ")
    assert ended.stderr.count("\n") == 1, ended.stderr
    assert "Admin key" not in ended.stdout
    return ended.stderr.removeprefix("Error: ").strip()


@pytest.mark.parametrize("words", [["serve"], ["serve", "--gateway-workers", "2"], ["worker"]], ids=" ".join)
def test_a_taken_port_is_named_before_anything_is_made(words: list[str], catalog: str, tmp_path: Path) -> None:
    with closing(held_port()) as taken:
        taken.listen()
        port = str(taken.getsockname()[1])
        settings = {"AIO_DATA_DIR": str(tmp_path / "data"), "AIO_CATALOG": catalog}

        said = refusal(*words, "--port", port, settings=settings)

    assert said == f"another program listens on port {port}; choose another port with --port"
    assert not (tmp_path / "data" / "aio.sqlite3").exists()


@pytest.mark.parametrize(
    "words", [["--role", "core"], ["--role", "gateway"], ["--gateway-workers", "2"]], ids=lambda words: words[-1]
)
def test_a_socket_path_that_is_too_long_is_named_with_its_settings(words: list[str], tmp_path: Path) -> None:
    data = tmp_path / ("x" * 107)
    settings = {"AIO_DATA_DIR": str(data), "AIO_CATALOG": "laptop", "AIO_PORT": "0"}

    said = refusal("serve", *words, settings=settings)

    assert f"{data / 'core.sock'} has {len(str(data / 'core.sock'))} bytes" in said
    assert "at most 107: set AIO_CORE_SOCKET (--socket) or AIO_DATA_DIR (--data-dir)" in said
    assert not (data / "aio.sqlite3").exists()


def test_a_temporary_folder_that_is_too_long_for_sockets_is_named(catalog: str, tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 107)
    folder.mkdir()
    settings = {"AIO_DATA_DIR": str(tmp_path / "data"), "AIO_CATALOG": catalog, "TMPDIR": str(folder), "AIO_PORT": "0"}

    said = refusal("serve", "--gateway-workers", "2", settings=settings)

    assert "at most 107: set TMPDIR to a shorter one" in said
    assert list(folder.iterdir()) == []


def test_an_address_of_another_machine_is_named(catalog: str, tmp_path: Path) -> None:
    settings = {"AIO_DATA_DIR": str(tmp_path), "AIO_CATALOG": catalog}

    said = refusal("serve", "--host", "192.0.2.77", "--insecure", settings=settings)

    assert said == "192.0.2.77 is not an address of this machine; choose one with --host"


@pytest.mark.parametrize("words", [["serve"], ["worker"], ["route", "Hello"], ["keys", "list"]], ids=" ".join)
def test_a_data_folder_that_is_a_file_is_named(words: list[str], catalog: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()

    said = refusal(*words, settings={"AIO_DATA_DIR": str(file), "AIO_CATALOG": catalog})

    assert said == f"the data folder {file} is a file; give another with --data-dir or AIO_DATA_DIR"


def test_a_data_folder_below_a_file_is_named(catalog: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()

    said = refusal("serve", settings={"AIO_DATA_DIR": str(file / "data"), "AIO_CATALOG": catalog})

    assert f"the data folder {file / 'data'} cannot be made, because {file} is a file; give another" in said


@pytest.mark.parametrize("words", [["serve"], ["keys", "create", "a"]], ids=" ".join)
def test_a_read_only_data_folder_is_named(words: list[str], read_only: tuple[Path, list[str]], catalog: str) -> None:
    folder, started_with = read_only

    said = refusal(*words, settings={"AIO_DATA_DIR": str(folder), "AIO_CATALOG": catalog}, started_with=started_with)

    assert said.startswith(f"the data folder {folder} cannot be written (")
    assert said.endswith("give another with --data-dir or AIO_DATA_DIR")


def test_a_home_that_cannot_be_written_is_named(read_only: tuple[Path, list[str]], catalog: str) -> None:
    home, started_with = read_only

    said = refusal("serve", settings={"HOME": str(home), "AIO_CATALOG": catalog}, started_with=started_with)

    assert said.startswith(f"the data folder {home}/.local/share/aio cannot be made (")
    assert said.endswith("give another with --data-dir or AIO_DATA_DIR")


def test_a_catalogue_that_cannot_be_written_is_named(read_only: tuple[Path, list[str]], tmp_path: Path) -> None:
    folder, started_with = read_only

    words = ("init", "--yes", "--ports", "", *_TIERS, "--output", str(folder / "aio.toml"))
    said = refusal(*words, settings={"OPENAI_API_KEY": "unused"}, started_with=started_with, cwd=tmp_path)

    assert said.startswith(f"cannot write {folder / 'aio.toml'} (")
    assert said.endswith("--output writes another file")


def test_a_data_folder_serves_one_server_until_it_ends(catalog: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    options = ("--catalog", catalog)

    def is_alive(server: ServedProcess) -> bool:
        return httpx.get(f"{server.url}/health/live", timeout=60).status_code == 200

    with served(data, tmp_path / "cache", *options) as first:
        said = refusal("serve", "--port", "0", *options, settings={"AIO_DATA_DIR": str(data)})

        assert said == (
            f"another aio serve (process {first.process.pid}) uses the data folder {data}; give this one its own with "
            "--data-dir or AIO_DATA_DIR"
        )
        assert is_alive(first)
        # What other commands read of it, from wherever they are run.
        assert (data / SERVED_CATALOG).resolve() == Path(catalog)
        first.kill()
    with served(data, tmp_path / "cache", *options) as second:
        assert is_alive(second)
