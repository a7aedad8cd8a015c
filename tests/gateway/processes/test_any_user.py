"""A user without a name and a home folder runs AIO, as in OpenShift: real processes in a user namespace."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from gateway.base.derived_settings import complete_user
from tests.support.served import READY
from tests.support.upstream import running_upstream, write_remote_catalog

pytestmark = pytest.mark.processes
NUMBER = 1_000_660_000
"""OpenShift's first number of a namespace: nothing has a user of this number."""


@pytest.fixture
def without_name() -> list[str]:
    """A command before others, which makes them run as `NUMBER`."""
    unshare = shutil.which("unshare")
    command = [str(unshare), "--user", f"--map-user={NUMBER}", "--map-group=0"]
    if unshare is None or subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine makes no user namespaces (unshare --user): no process ran without a name")
    return command


@contextmanager
def run_by(user: list[str], folder: Path, what: str, *options: str) -> Iterator["subprocess.Popen[str]"]:
    code = "from gateway.cli import main; main()"
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path.cwd()), "PYTHONUNBUFFERED": "1"}
    environment |= {"AIO_DATA_DIR": str(folder / "data"), "AIO_CACHE_DIR": str(folder / "cache"), "AIO_PORT": "0"}
    process = subprocess.Popen(
        [*user, sys.executable, "-c", code, what, *options],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def test_a_gateway_serves_a_worker_waits_and_a_check_answers(tmp_path: Path, without_name: list[str]) -> None:
    with running_upstream() as upstream:
        catalog = ("--catalog", str(write_remote_catalog(tmp_path / "catalog.toml", upstream.base_url)))
        with run_by(without_name, tmp_path, "check", *catalog) as check:
            said = check.communicate(timeout=120)[0]
            assert check.returncode == 0, said
        for what, ready in (("serve", "AIO is ready on "), ("worker", "Probes and metrics are on ")):
            with run_by(without_name, tmp_path, what, *catalog) as process:
                assert process.stdout is not None
                line = next((line for line in process.stdout if ready in line), "")
                assert line, f"aio {what} did not start"
                status = Path(f"/proc/{process.pid}/environ").read_text()
                assert "HOME=" not in status
                if what == "serve":
                    assert (found := READY.search(line)) is not None
                    assert httpx.get(f"{found[1]}/health/live").status_code == 200


def test_without_folders_the_start_is_refused_in_a_line(without_name: list[str]) -> None:
    code = "from gateway.cli import main; main()"
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(
        [*without_name, sys.executable, "-c", code, "keys", "list", "--data-dir", "/proc/nothing"],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "--data-dir" in done.stderr


def test_a_user_with_a_name_keeps_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    environment: dict[str, str] = {}
    complete_user(environment)
    assert environment == {}

    def unknown(number: int) -> None:
        raise KeyError(number)

    monkeypatch.setattr("pwd.getpwuid", unknown)
    complete_user(environment)
    assert environment == {"HOME": "/", "USER": str(os.getuid())}
    given = {"HOME": "/here", "USER": "ada", "AIO_CACHE_DIR": "/cache"}
    complete_user(given)
    assert given == {"HOME": "/here", "USER": "ada", "AIO_CACHE_DIR": "/cache"}
