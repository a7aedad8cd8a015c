"""`aio serve`: its own models compute in a process of their own, which it starts, replaces, restarts and ends."""

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from gateway.base.settings import Settings
from gateway.runtime.core_factory import core_factory
from inference_core.protocol import AddRequest, SamplingParams
from inference_core.transport.core_thread import ThreadCoreClient
from inference_core.transport.unix_socket import ChildCoreClient
from tests.gateway.device_catalog import write_catalog
from tests.gateway.tiny_versions import ASKED, Versions
from tests.polling import until
from tests.process_tree import children, command, lives
from tests.support.served import ENDED_SECONDS, READY, UNCACHED, Serve, ServedProcess, started
from tiers.catalog.catalog import CPU_CORE
from tiers.catalog.load import load_catalog

pytestmark = pytest.mark.processes


def ask(aio: ServedProcess) -> httpx.Response:
    return httpx.post(f"{aio.url}/v1/completions", json=ASKED, headers=UNCACHED, timeout=60)


def core_of(aio: ServedProcess) -> int:
    """The one child that has the models."""
    (core,) = [child for child in children(aio.process.pid) if "libtorch" in Path(f"/proc/{child}/maps").read_text()]
    return core


def test_the_gateway_never_maps_torch_and_restarts_a_core_that_is_killed(tmp_path: Path, served: Serve) -> None:
    versions = Versions(tmp_path)
    versions.write("old")
    aio = served("--catalog", str(versions.file))
    answer, killed = ask(aio), core_of(aio)
    assert answer.status_code == 200
    assert not aio.maps_torch()
    os.kill(killed, signal.SIGKILL)
    until(lambda: ask(aio).status_code == 200)
    assert ask(aio).json()["choices"] == answer.json()["choices"]
    assert core_of(aio) != killed
    assert not lives(killed)


def test_a_reload_starts_the_new_core_in_another_process_and_ends_the_old(tmp_path: Path, served: Serve) -> None:
    versions = Versions(tmp_path)
    versions.write("old")
    aio = served("--catalog", str(versions.file))
    old, before = ask(aio).json(), core_of(aio)
    versions.write("new")
    aio.process.send_signal(signal.SIGHUP)
    until(lambda: ask(aio).json()["x_aio"]["version"] != old["x_aio"]["version"])
    until(lambda: not lives(before))
    assert core_of(aio) != before
    assert ask(aio).json()["choices"] != old["choices"]


def test_a_killed_gateway_takes_its_core_with_it(tmp_path: Path, served: Serve) -> None:
    versions = Versions(tmp_path)
    versions.write("old")
    aio = served("--catalog", str(versions.file))
    core = core_of(aio)
    assert lives(core)
    aio.kill()
    until(lambda: not lives(core))


def test_a_setting_has_the_core_compute_on_a_thread_of_the_gateway(tmp_path: Path, served: Serve) -> None:
    versions = Versions(tmp_path)
    versions.write("old")
    aio = served("--catalog", str(versions.file), environment={"AIO_CORE_PROCESS": "false"})
    assert ask(aio).status_code == 200
    assert aio.maps_torch()


def test_a_core_that_cannot_be_loaded_after_the_first_serves_stops_the_server(tmp_path: Path) -> None:
    catalog = write_catalog(tmp_path / "catalog.toml")
    with started(tmp_path / "data", tmp_path / "cache", "--port", "0", "--catalog", str(catalog)) as gateway:
        held: list[int] = []

        def hold_the_card() -> None:
            until(lambda: held.extend(c for c in children(gateway.pid) if "--group card" in command(c)) or held, 0.005)
            os.kill(held[0], signal.SIGSTOP)

        holding = threading.Thread(target=hold_the_card)
        holding.start()
        assert gateway.stdout is not None
        ready = next(filter(None, map(READY.search, gateway.stdout)))
        holding.join()
        shown = httpx.get(f"{ready[1]}/health/ready", timeout=60).json()
        assert (shown["status"], shown["problems"]["core card"]) == ("degraded", "loads its models")
        for tier, status in (("tier-1", 200), ("tier-2", 503)):
            asked = ASKED | {"model": tier}
            answer = httpx.post(f"{ready[1]}/v1/completions", json=asked, headers=UNCACHED, timeout=60)
            assert answer.status_code == status, answer.text
        os.kill(held[0], signal.SIGKILL)
        assert gateway.wait(ENDED_SECONDS) == 1
    assert "core card cannot be loaded, so the server stops: " in (tmp_path / "data" / "log").read_text()


NOTING = """
import atexit, sys
from gateway.cli import main
atexit.register(lambda: open(sys.argv[-1], "w").write("\\n".join(sys.modules)))
main(sys.argv[1:-1])
"""


async def test_a_core_of_the_cpu_computes_the_same_without_what_torch_s_compilers_need(tmp_path: Path) -> None:
    versions, modules = Versions(tmp_path), tmp_path / "modules"
    versions.write("old")
    options = ["--catalog", str(versions.file), "--data-dir", str(tmp_path), "--cache-dir", str(tmp_path / "cache")]

    def launch(channel: socket.socket) -> "subprocess.Popen[bytes]":
        role = ["serve", "--role", "core", "--channel", str(channel.fileno()), *options, str(modules)]
        return subprocess.Popen([sys.executable, "-c", NOTING, *role], pass_fds=[channel.fileno()])

    factory = core_factory(load_catalog(str(versions.file)), Settings(cache_dir=str(tmp_path / "here")), CPU_CORE)
    answers = []
    for core in (ChildCoreClient(launch), ThreadCoreClient(factory)):
        await core.start()
        sampling = SamplingParams(temperature=0.7, seed=1, max_tokens=16, ignore_eos=True)
        request = AddRequest(request_id="r", model="tiny", prompt_token_ids=[1, 2, 3], sampling=sampling)
        answers.append([token async for output in core.generate(request) for token in output.token_ids])
        await core.close()

    assert len(answers[0]) == 16
    assert answers[0] == answers[1]
    imported = modules.read_text().splitlines()
    assert "torch" in imported
    assert not {"torch._meta_registrations", "torch._refs", "torch._decomp"} & set(imported)
