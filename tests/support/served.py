"""`aio serve` in its own process.

A test takes the fixture `served` and starts what it needs: `aio = served("--gateway-workers", "2", upstream=upstream)`.
Fixtures of a module take `module_served`. The block `served` is for a test that looks at what a process left behind.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import httpx
import openai
import pytest

from tests.polling import until
from tests.support.administrator import ADMIN_KEYS, Administrator, bearer
from tests.support.upstream import Upstream, write_remote_catalog

# Tests check generated answers; tests of the response cache opt in.
UNCACHED = {"x-aio-cache": "off"}
# A process that should end ends itself by force before, with another status; on a busy machine it may need minutes.
ENDED_SECONDS = 300.0
READY = re.compile(r"AIO is ready on (http://[\d.]+:\d+)")


class ServedProcess:
    """A running `aio serve` with the URL it announced."""

    def __init__(self, process: "subprocess.Popen[str]", url: str) -> None:
        self.process, self.url = process, url
        self.client = openai.OpenAI(
            base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=120, default_headers=UNCACHED
        )
        self.admin = httpx.Client(base_url=url, timeout=60, auth=Administrator())

    def ask(
        self, text: str = "Hello there", *, key: str = "", headers: Mapping[str, str] | None = None, **fields: Any
    ) -> httpx.Response:
        """The answer to a chat of one turn, of tier 1 unless `fields` say otherwise, with the secret of a key.

        It has a connection of its own, which the kernel assigns to one of the workers.
        """
        body = {"model": "tier-1", "messages": [{"role": "user", "content": text}], **fields}
        own = {**(bearer(key) if key else {}), **(headers or {})}
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, headers=own, timeout=280)

    def maps_torch(self) -> bool:
        """Whether torch's libraries are mapped into the process."""
        return "libtorch" in Path(f"/proc/{self.process.pid}/maps").read_text()

    def until_whole(self) -> None:
        """Wait until all cores have loaded all their models: it is ready once its first tier serves."""
        until(lambda: httpx.get(f"{self.url}/health/ready", timeout=60).json()["status"] == "ok")

    def kill(self) -> None:
        """SIGKILL: no handler, no flush."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@contextmanager
def served(
    data: Path, cache: Path, *options: str, environment: Mapping[str, str] | None = None
) -> Iterator[ServedProcess]:
    """Start `aio serve` on a free port, wait until it announces itself, and interrupt it at the end."""
    with started(data, cache, "--port", "0", *options, environment=environment) as process:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if ready := READY.search(line):
                yield ServedProcess(process, ready[1])
                return
        raise AssertionError(f"aio serve ended with {process.wait()}:\n{said}\n{(data / 'log').read_text()}")


def run_at_start(folder: Path, code: str) -> dict[str, str]:
    """The environment of a process that runs `code` as Python starts, as its own processes do; `folder` receives it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(code)
    return {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])}


_USUAL = {
    "PYTHONUNBUFFERED": "1",
    "AIO_ADMIN_KEYS": ADMIN_KEYS,
    "AIO_COLD_START_USD": "0",
    "AIO_MEASURE_MODELS": "false",
}


@contextmanager
def started(
    data: Path, cache: Path, *options: str, environment: Mapping[str, str] | None = None, what: str = "serve"
) -> Iterator["subprocess.Popen[str]"]:
    """Start `aio serve`, or a similar command, with its log in `data/log`; interrupt it at the end.

    Unless `environment` says otherwise, the tests' administrator has a key, no answers are verified merely because
    the catalogue is new, and no model is measured.
    """
    data.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-c", "from gateway.cli import main; main()", what]
    folders = ["--data-dir", str(data), "--cache-dir", str(cache)]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIO_")}
    with (data / "log").open("ab") as log:
        process = subprocess.Popen(
            [*command, *folders, *options],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=inherited | _USUAL | dict(environment or {}),
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Serve(Protocol):
    """Start `aio serve` with these options; the fixture ends it.

    Its data folder is the fixture's unless there is `data`. With an `upstream`, its catalogue is `write_remote_catalog`
    for that server; `own_models` is of that.
    """

    def __call__(
        self,
        *options: str,
        upstream: Upstream | None = None,
        own_models: bool = False,
        data: Path | None = None,
        cache: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> ServedProcess: ...


@contextmanager
def _serving(folder: Callable[[], Path]) -> Iterator[Serve]:
    with ExitStack() as stack:

        def start(
            *options: str,
            upstream: Upstream | None = None,
            own_models: bool = False,
            data: Path | None = None,
            cache: Path | None = None,
            environment: Mapping[str, str] | None = None,
        ) -> ServedProcess:
            data = data or folder() / "data"
            if upstream is not None:
                data.mkdir(parents=True, exist_ok=True)
                catalog = write_remote_catalog(data / "catalog.toml", upstream.base_url, own_models=own_models)
                options = ("--catalog", str(catalog), *options)
            running = served(data, cache or data / "cache", *options, environment=environment)
            return stack.enter_context(running)

        yield start


@pytest.fixture(name="served")
def _served(tmp_path: Path) -> Iterator[Serve]:
    """Starts processes with the test's data folder; they end with the test."""
    with _serving(lambda: tmp_path) as start:
        yield start


@pytest.fixture(scope="module")
def module_served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Starts processes with a data folder each; they end with the module."""
    with _serving(lambda: tmp_path_factory.mktemp("served")) as start:
        yield start
