"""SIGUSR2 under several workers: a core with another version of the model takes over; no reply fails or mixes two."""

import os
import shutil
import signal
import threading
from pathlib import Path

import httpx
import pytest

from benchmarks.core.random_adapter import write_random_adapter
from tests.gateway.processes.test_core_killed import core_of
from tests.gateway.tiny_versions import ASKED, Versions
from tests.inference_core.quantization.tiny_model import tiny_config
from tests.polling import until
from tests.support.served import UNCACHED, Serve, ServedProcess

pytestmark = pytest.mark.processes
OLD_STAYS = "not replaced, the old one goes on"


def log_of(folder: Path) -> str:
    return (folder / "data" / "log").read_text()


def reply(aio: ServedProcess) -> tuple[str, str]:
    """Return the text of an answer on a connection of its own, and the version that the gateway names."""
    answer = httpx.post(f"{aio.url}/v1/completions", json=ASKED, headers=UNCACHED, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"], answer.json()["x_aio"]["version"]


def reply_of_any(aio: ServedProcess) -> tuple[str, str]:
    """The next reply of a worker that has found the core: the two workers find a new one in their own time."""
    while True:
        answer = httpx.post(f"{aio.url}/v1/completions", json=ASKED, headers=UNCACHED, timeout=60)
        if answer.status_code == 200:
            return answer.json()["choices"][0]["text"], answer.json()["x_aio"]["version"]
        assert answer.status_code == 503, answer.text


def adapted(aio: ServedProcess) -> str | None:
    """The text of an answer with the adapter that was loaded over HTTP; None if it is refused."""
    asked = ASKED | {"model": "tier-1:sql"}
    answer = httpx.post(f"{aio.url}/v1/completions", json=asked, headers=UNCACHED, timeout=60)
    return str(answer.json()["choices"][0]["text"]) if answer.status_code == 200 else None


def test_sigusr2_replaces_a_core_that_the_catalogue_changes(tmp_path: Path, served: Serve) -> None:
    versions = Versions(tmp_path)
    versions.write("old")
    options = ("--gateway-workers", "2", "--catalog", str(versions.file))
    aio = served(*options)
    old, before = reply(aio), core_of(aio)
    assert before is not None
    source = tmp_path / "sql"
    write_random_adapter(source, tiny_config(versions.model("old")), rank=2, strength=1.0)
    adapter = {"model": "tiny", "name": "sql", "path": str(source)}
    assert aio.admin.post("/v1/admin/adapters", json=adapter).status_code == 200
    reload = aio.admin.post("/v1/admin/reload", json={"reason": "nothing new"})
    assert (reload.status_code, reload.json()["loaded"]) == (200, [])
    versions.write("new")
    refused = aio.admin.post("/v1/admin/reload", json={"reason": "a new version"})
    assert (refused.status_code, "SIGUSR2" in refused.json()["error"]["message"]) == (409, True)
    replies: list[tuple[str, str]] = []
    failed: list[BaseException] = []
    done = threading.Event()

    def ask() -> None:
        try:
            while not done.is_set():
                replies.append(reply(aio))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    aio.process.send_signal(signal.SIGUSR2)
    until(lambda: failed or (not Path(f"/proc/{before}").exists() and len(set(replies)) > 1))
    done.set()
    for thread in threads:
        thread.join()
    assert not failed
    new = reply(aio)
    assert old != new
    assert old[1] != new[1]
    assert set(replies) == {old, new}
    assert core_of(aio) not in (None, before)
    assert adapted(aio) not in (None, new[0])
    # A core that dies is restarted at its socket, the new one too.
    renewed = core_of(aio)
    assert renewed is not None
    os.kill(renewed, signal.SIGKILL)
    assert reply_of_any(aio) == new
    # One that cannot be loaded replaces nothing.
    until(lambda: core_of(aio) not in (None, renewed))
    standing = core_of(aio)
    until(lambda: adapted(aio) not in (None, new[0]))
    # Nor does one that cannot have the adapter, because its folder is gone.
    shutil.rmtree(source)
    versions.write("old")
    aio.process.send_signal(signal.SIGUSR2)
    until(lambda: OLD_STAYS in log_of(tmp_path))
    assert "the adapter tiny:sql, loaded while a core served, is refused" in log_of(tmp_path)
    assert (core_of(aio), reply_of_any(aio)) == (standing, new)
    refusals = log_of(tmp_path).count(OLD_STAYS)
    versions.write("missing")
    aio.process.send_signal(signal.SIGUSR2)
    until(lambda: log_of(tmp_path).count(OLD_STAYS) > refusals)
    assert (core_of(aio), reply_of_any(aio)) == (standing, new)
