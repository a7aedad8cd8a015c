"""A real server tells systemd when it is ready and when it stops, and the unit of the documentation is one."""

import re
import shutil
import signal
import socket
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.processes.announcement import tell_service_manager
from tests.support.served import started
from tests.support.upstream import running_upstream, write_remote_catalog

PAGE = Path(__file__).parents[3] / "docs" / "deployment.md"


@pytest.fixture(params=["file", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """The socket of a service manager, and its name in the environment."""
    address = str(tmp_path / "notify") if request.param == "file" else f"\0aio-{uuid.uuid4().hex}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(address)
        listening.settimeout(120)
        yield listening, address.replace("\0", "@")


@pytest.mark.processes
@pytest.mark.parametrize("what", ["serve", "worker", "workers"])
def test_a_server_says_when_it_is_ready_and_when_it_stops(
    tmp_path: Path, manager: tuple[socket.socket, str], what: str
) -> None:
    listening, name = manager
    options = ["--gateway-workers", "2"] if what == "workers" else []
    with running_upstream() as upstream:
        catalog = str(write_remote_catalog(tmp_path / "catalog.toml", upstream.base_url))
        given = ("--port", "0", "--catalog", catalog, *options)
        command = "worker" if what == "worker" else "serve"
        environment = {"NOTIFY_SOCKET": name, "AIO_DRAIN_SECONDS": "1"}
        with started(tmp_path / "data", tmp_path / "cache", *given, environment=environment, what=command) as process:
            assert process.stdout is not None
            ready = listening.recv(4096).decode().splitlines()
            assert ready[0] == "READY=1"
            assert re.fullmatch(r"STATUS=Listening on http://127\.0\.0\.1:\d+", ready[1])
            process.send_signal(signal.SIGTERM)
            assert listening.recv(4096) == b"STOPPING=1"
            process.stdout.read()
            assert process.wait(120) == 0
    listening.setblocking(False)
    with pytest.raises(BlockingIOError):
        listening.recv(4096)


@pytest.mark.processes
def test_a_core_of_its_own_says_the_same(tmp_path: Path, manager: tuple[socket.socket, str]) -> None:
    listening, name = manager
    environment = {"NOTIFY_SOCKET": name}
    given = ("--role", "core", "--catalog", "laptop")
    with started(tmp_path / "data", tmp_path / "cache", *given, environment=environment) as process:
        assert listening.recv(4096) == b"READY=1"
        process.send_signal(signal.SIGTERM)
        assert listening.recv(4096) == b"STOPPING=1"
        assert process.stdout is not None
        process.stdout.read()
        assert process.wait(120) == 0


@pytest.mark.parametrize("name", ["", "relative", "/nowhere/notify", "@nobody-listens-here"])
def test_without_a_manager_nothing_happens(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    tell_service_manager("READY=1")


def test_the_unit_of_the_documentation_is_one(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed: the unit was not checked")
    unit = re.search(r"```ini\n(\[Unit\].*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert unit is not None
    path = tmp_path / "aio.service"
    # Its program is not installed here.
    path.write_text(unit[1].replace("/opt/aio/bin/aio", "/bin/true"))
    done = subprocess.run([analyze, "verify", "--man=no", str(path)], capture_output=True, text=True, check=False)
    said = [line for line in done.stderr.splitlines() if "aio.service" in line]
    assert said == []
    assert {"Type=notify", "KillMode=mixed"} <= set(unit[1].splitlines())
