"""A real Ray with several nodes: cores placed on it, served through a gateway, a node killed under load, and
recovery."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.polling import until
from tests.support.served import UNCACHED, Serve, ServedProcess

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
pytest.importorskip("ray.serve", reason="the extra `ray` is not installed")

PATIENCE = 300
REQUESTS = 24
MODELS = ("tier-1", "tier-2", "auto")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head and two nodes with one CPU each, each with room for one replica of the laptop's core."""
    from gateway.runtime.cluster.join import LocalCluster

    with LocalCluster(2) as local:
        yield local


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


def aio(cluster: Any, folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run `aio cluster …`."""
    command = [sys.executable, "-c", "from gateway.cli import main; main()", "cluster", *words]
    variables = {
        "AIO_CLUSTER": cluster.address,
        "AIO_DATA_DIR": str(folder / "data"),
        "AIO_CACHE_DIR": str(folder / "cache"),
        "AIO_DRAIN_SECONDS": "120",
    }
    return subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=PATIENCE)


@pytest.fixture(scope="module")
def gateway(cluster: Any, folder: Path, module_served: Serve) -> ServedProcess:
    """A gateway over two replicas, one on each node."""
    deployed = aio(cluster, folder, "deploy", "--replicas", "2")
    assert deployed.returncode == 0, deployed.stderr
    running = module_served("--cluster", cluster.address, data=folder / "data")
    until(lambda: httpx.get(f"{running.url}/health/ready").json()["status"] == "ok")
    return running


def replicas(cluster: Any) -> list[Any]:
    return replicas_of(cluster, "cpu", "laptop")


def replicas_of(cluster: Any, core: str, catalog: str) -> list[Any]:
    """What is announced, asked by this process: a command for each look would take most of the tests' time."""
    from gateway.runtime.cluster.fleet import announced
    from gateway.runtime.cluster.join import join
    from tiers.catalog.load import load_catalog

    join(cluster.address)
    return announced(load_catalog(catalog), core)


async def mixed_load(url: str, first_tokens: asyncio.Event) -> list[str]:
    """Send streams and whole answers at once; return the outcome of each: "answered", "failed" or "broken off"."""
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, headers=UNCACHED) as http:
        return await asyncio.gather(*(outcome(http, number, first_tokens) for number in range(REQUESTS)))


async def outcome(http: httpx.AsyncClient, number: int, first_tokens: asyncio.Event) -> str:
    body = {
        "model": MODELS[number % 3],
        "messages": [{"role": "user", "content": f"Tell me about the number {number}."}],
        "max_tokens": 60,
        "ignore_eos": True,
        "temperature": 0,
        "stream": number % 2 == 0,
    }
    if number % 2:
        reply = await http.post("/v1/chat/completions", json=body)
        if reply.status_code == 200:
            assert reply.json()["usage"]["completion_tokens"] > 0
            return "answered"
        assert (reply.status_code, "retry-after" in reply.headers) == (503, True), reply.text
        return "failed"
    async with http.stream("POST", "/v1/chat/completions", json=body) as reply:
        if reply.status_code != 200:
            assert reply.status_code == 503
            return "failed"
        last = ""
        async for line in reply.aiter_lines():
            if '"content":' in line:
                first_tokens.set()
            last = line or last
    if last == "data: [DONE]":
        return "answered"
    assert "error" in json.loads(last.removeprefix("data: ")), last
    return "broken off"


def test_a_core_without_room_is_refused_with_the_constraint(cluster: Any, folder: Path) -> None:
    refused = aio(cluster, folder, "deploy", "--replicas", "1", "--cpus", "4")

    assert refused.returncode == 1
    assert "needs 4 CPU on one node (STRICT_PACK), and the most that is free on one is 1 CPU" in refused.stderr


def test_replicas_lie_on_different_nodes_and_obey_the_same_knobs(
    cluster: Any, folder: Path, gateway: ServedProcess
) -> None:
    found = replicas(cluster)
    answer = gateway.admin.patch("/v1/admin/knobs/core", json={"max_num_seqs": 17}, timeout=60)

    assert len({one.node for one in found}) == 2
    assert answer.status_code == 200, answer.text
    assert not gateway.maps_torch()


def test_every_request_is_answered_or_honestly_failed_when_a_node_dies(
    cluster: Any, folder: Path, gateway: ServedProcess
) -> None:
    async def lose_a_node() -> list[str]:
        started = asyncio.Event()
        load = asyncio.create_task(mixed_load(gateway.url, started))
        await started.wait()
        await asyncio.to_thread(cluster.kill_node, cluster.nodes[0])
        return await load

    outcomes = asyncio.run(lose_a_node())

    assert len(outcomes) == REQUESTS
    assert outcomes.count("answered") >= REQUESTS // 3
    after = asyncio.run(mixed_load(gateway.url, asyncio.Event()))
    assert after == ["answered"] * REQUESTS


def test_a_new_node_gets_the_lost_replica(cluster: Any, folder: Path, gateway: ServedProcess) -> None:
    cluster.add_node()

    until(lambda: len({one.node for one in replicas(cluster)}) == 2)

    assert asyncio.run(mixed_load(gateway.url, asyncio.Event())) == ["answered"] * REQUESTS


def test_taking_down_lets_running_answers_end(cluster: Any, folder: Path, gateway: ServedProcess) -> None:
    async def drain() -> tuple[str, "subprocess.CompletedProcess[str]"]:
        started = asyncio.Event()
        async with httpx.AsyncClient(base_url=gateway.url, timeout=PATIENCE) as http:
            answering = asyncio.create_task(outcome(http, 0, started))
            await started.wait()
            down = await asyncio.to_thread(aio, cluster, folder, "down")
            return await answering, down

    answered, down = asyncio.run(drain())

    assert (answered, down.returncode) == ("answered", 0), down.stderr
    body = {"model": "tier-1", "messages": [{"role": "user", "content": "Hello"}]}
    refused = httpx.post(f"{gateway.url}/v1/chat/completions", json=body, timeout=60)
    assert (refused.status_code, "retry-after" in refused.headers) == (503, True)


def test_a_queue_brings_another_replica_and_idleness_takes_it(
    cluster: Any, folder: Path, gateway: ServedProcess
) -> None:
    numbers = ("--replicas", "1", "--most", "2", "--up-seconds", "1", "--down-seconds", "5")
    deployed = aio(cluster, folder, "deploy", *numbers)
    assert deployed.returncode == 0, deployed.stderr
    until(lambda: httpx.get(f"{gateway.url}/health/ready").json()["status"] == "ok")
    until(lambda: len(serving(cluster)) == 1)
    seats = gateway.admin.patch("/v1/admin/knobs/core", json={"max_num_seqs": 2}, timeout=60)
    assert seats.status_code == 200, seats.text

    async def load_until_two() -> None:
        deadline = time.monotonic() + PATIENCE
        while len(serving(cluster)) < 2:
            assert time.monotonic() < deadline, "no second replica came"
            assert await mixed_load(gateway.url, asyncio.Event()) == ["answered"] * REQUESTS

    asyncio.run(load_until_two())
    until(lambda: len(serving(cluster)) == 1)


def serving(cluster: Any) -> list[Any]:
    return [one for one in replicas(cluster) if not one.leaving]


def test_prefill_replicas_are_a_pool_of_their_own(cluster: Any, folder: Path, gateway: ServedProcess) -> None:
    pools = ("--replicas", "1", "--prefill", "1", "--prefill-knob", "max_num_batched_tokens=2048")
    deployed = aio(cluster, folder, "deploy", *pools)
    assert deployed.returncode == 0, deployed.stderr
    until(lambda: sorted(one.role for one in serving(cluster)) == ["decode", "prefill"])
    changed = gateway.admin.patch("/v1/admin/knobs/core", json={"handover_min_tokens": 200}, timeout=60)
    assert changed.status_code == 200, changed.text
    body = {"model": "tier-1", "messages": [{"role": "user", "content": "Say it again. " * 100}], "max_tokens": 8}

    # Gateways look for replicas every second, so the first prompts may find none for prefill yet.
    def is_handed_over() -> bool:
        body["messages"][0]["content"] += "And again. "
        reply = httpx.post(f"{gateway.url}/v1/chat/completions", json=body, headers=UNCACHED, timeout=PATIENCE)
        assert reply.status_code == 200, reply.text
        metrics = httpx.get(f"{gateway.url}/metrics", timeout=60).text
        return any("aio_handovers_total{" in line and 'outcome="done"' in line for line in metrics.splitlines())

    until(is_handed_over)
    again = aio(cluster, folder, "deploy", "--replicas", "1")
    assert again.returncode == 0, again.stderr
    until(lambda: [one.role for one in serving(cluster)] == ["both"])
