"""The short run of the group: a cluster of this machine from start to end, by the commands of docs/reference/ray.md."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.polling import until
from tests.ports import held_port
from tests.support.served import UNCACHED, ServedProcess, served

pytestmark = [pytest.mark.ray, pytest.mark.ray_short, pytest.mark.timeout(600)]
pytest.importorskip("ray.serve", reason="the extra `ray` is not installed")

_AIO = (sys.executable, "-c", "from gateway.cli import main; main()")
_ADDRESS = re.compile(r"aio serve --cluster (\S+)")
_LISTENS, _LOOPBACK = "0A", ("0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000")


def aio(folder: Path, *words: str, cluster: str = "auto") -> "subprocess.CompletedProcess[str]":
    variables = {"AIO_CLUSTER": cluster, "AIO_DATA_DIR": str(folder / "data"), "AIO_CACHE_DIR": str(folder / "cache")}
    return subprocess.run([*_AIO, *words], env=os.environ | variables, capture_output=True, text=True, timeout=300)


@contextmanager
def cluster_up(nodes: int, **variables: str) -> Iterator["tuple[subprocess.Popen[str], str]"]:
    """Run `aio cluster up`, with its address; interrupt it at the end."""
    process = subprocess.Popen(
        [*_AIO, "cluster", "up", "--nodes", str(nodes)], env=os.environ | variables, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        found = next(filter(None, map(_ADDRESS.search, process.stdout)))
        yield process, found[1]
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0


def replicas(folder: Path, address: str) -> list[dict[str, Any]]:
    shown = aio(folder, "cluster", "status", "--json", cluster=address)
    assert shown.returncode == 0, shown.stderr
    found: list[dict[str, Any]] = json.loads(shown.stdout)["cpu"]["replicas"]
    return found


def ask(gateway: ServedProcess) -> httpx.Response:
    body = {"model": "tier-1", "messages": [{"role": "user", "content": "What is the capital of France?"}]}
    return httpx.post(
        f"{gateway.url}/v1/chat/completions",
        json=body | {"max_tokens": 8, "temperature": 0},
        headers=UNCACHED,
        timeout=300,
    )


def kill_node_of(replica: dict[str, Any]) -> None:
    """SIGKILL to the replica and to the raylet of its node, as if the machine failed."""
    variables = Path(f"/proc/{replica['pid']}/environ").read_bytes().split(b"\0")
    raylet = next(each for each in variables if each.startswith(b"RAY_RAYLET_PID=")).partition(b"=")[2]
    for process in (int(raylet), replica["pid"]):
        os.kill(process, signal.SIGKILL)


def open_to_others(process: int) -> list[str]:
    """Names of the process and its descendants that listen on more than loopback."""
    rows = [
        line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    listening = {
        f"socket:[{row[9]}]" for row in rows if row[3] == _LISTENS and row[1].rpartition(":")[0] not in _LOOPBACK
    }
    return [
        Path(f"/proc/{each}/comm").read_text().strip() for each in descendants(process) if sockets(each) & listening
    ]


def descendants(process: int) -> list[int]:
    found = [process]
    for each in found:
        for thread in Path(f"/proc/{each}/task").glob("*/children"):
            found += map(int, thread.read_text().split())
    return found


def sockets(process: int) -> set[str]:
    found = set()
    for link in Path(f"/proc/{process}/fd").iterdir():
        try:
            found.add(str(link.readlink()))
        except FileNotFoundError:
            continue
    return found


def test_a_cluster_of_this_machine_serves_loses_a_node_serves_on_and_ends(tmp_path: Path) -> None:
    with cluster_up(2) as (up, address):
        deployed = aio(tmp_path, "cluster", "deploy", "--replicas", "2", cluster=address)
        assert deployed.returncode == 0, deployed.stderr
        lost, left = replicas(tmp_path, "auto")
        assert lost["node"] != left["node"]
        assert open_to_others(up.pid) == []
        with served(tmp_path / "gateway", tmp_path / "cache", "--cluster", address) as gateway:
            before = ask(gateway)
            assert before.status_code == 200, before.text

            kill_node_of(lost)

            # A request that is on its way to the lost replica goes to the other.
            assert ask(gateway).json()["choices"] == before.json()["choices"]
            down = aio(tmp_path, "cluster", "down", cluster=address)
            assert (down.returncode, down.stdout) == (0, "aio-laptop-cpu is down\n"), down.stderr
            until(lambda: ask(gateway).status_code == 503)


def test_a_cluster_that_is_not_there_is_named_with_what_was_tried(tmp_path: Path) -> None:
    with held_port() as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
        nothing = aio(tmp_path, "cluster", "status", cluster=address)
        held.listen()
        silent = subprocess.run(
            [sys.executable, "-c", f"from gateway.runtime.cluster.join import join; join({address!r}, seconds=2)"],
            capture_output=True,
            text=True,
            timeout=100,
        )
    assert (nothing.returncode, nothing.stderr.count("\n")) == (1, 1)
    assert f"no Ray cluster at {address}: no connection to {address} within 5 s (Connection refused)" in nothing.stderr
    assert f"{address} accepts connections, and did not let this process join within 2 s" in silent.stderr
    assert silent.returncode == 1


def test_a_folder_that_ray_cannot_make_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    command = [*_AIO, "cluster", "up", "--nodes", "1"]

    ended = subprocess.run(command, env=os.environ | {"RAY_TMPDIR": str(file)}, capture_output=True, text=True)

    assert ended.returncode == 1
    assert ended.stderr == (
        f"Error: Ray cannot make its folder {file}/ray (Not a directory); set RAY_TMPDIR to another\n"
    )


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1", "ray://127.0.0.1"])
def test_what_is_no_address_is_refused_with_the_forms_it_may_have(address: str) -> None:
    from gateway.runtime.cluster.join import join
    from gateway.runtime.cluster.placement import ClusterError

    with pytest.raises(ClusterError, match="give auto, HOST:PORT or ray://HOST:PORT"):
        join(address)
