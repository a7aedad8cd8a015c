"""A core of two pipeline stages on two nodes of a real Ray: it answers, and is replaced when a stage is lost."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway.device_catalog import write_catalog
from tests.gateway.runtime.cluster.test_ray_cluster import PATIENCE, aio, replicas_of
from tests.polling import until
from tests.support.served import UNCACHED, Serve, ServedProcess

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
pytest.importorskip("ray.serve", reason="the extra `ray` is not installed")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head and three nodes with one CPU each: for the CPU core and for each stage of the other one."""
    from gateway.runtime.cluster.join import LocalCluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        with LocalCluster(3) as local:
            yield local


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stages")


@pytest.fixture(scope="module")
def catalog(folder: Path) -> str:
    path = write_catalog(folder / "catalog.toml")
    path.write_text(path.read_text().replace("cards = 1\n", "cards = 2\npipeline = 2\n"))
    return str(path)


@pytest.fixture(scope="module")
def gateway(cluster: Any, folder: Path, catalog: str, module_served: Serve) -> ServedProcess:
    deployed = aio(cluster, folder, "deploy", "--catalog", catalog)
    assert deployed.returncode == 0, deployed.stderr
    options = ("--catalog", catalog, "--cluster", cluster.address)
    running = module_served(*options, data=folder / "data")
    until(lambda: httpx.get(f"{running.url}/health/ready").json()["status"] == "ok")
    return running


def stage_ranks() -> dict[int, str]:
    """Process ids of ranks that are not leaders, and the raylets of their nodes."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command, variables = ((process / name).read_bytes().split(b"\0") for name in ("cmdline", "environ"))
        except OSError:
            continue
        # Meshes that other programs run on this machine have no raylet.
        raylet = raylet_in(variables)
        if b"inference_core.parallel" in command and raylet is not None:
            found[int(process.name)] = raylet
    return found


def raylet_in(variables: list[bytes]) -> str | None:
    return next((each.decode() for each in variables if each.startswith(b"RAY_RAYLET_PID=")), None)


def answer(gateway: ServedProcess) -> httpx.Response:
    body = {
        "model": "tier-2",
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "max_tokens": 4,
        "temperature": 0,
    }
    return httpx.post(f"{gateway.url}/v1/chat/completions", json=body, timeout=PATIENCE, headers=UNCACHED)


def test_stages_lie_on_different_nodes_and_answer_together(
    cluster: Any, folder: Path, catalog: str, gateway: ServedProcess
) -> None:
    reply = answer(gateway)

    assert reply.status_code == 200, reply.text
    assert reply.json()["usage"]["completion_tokens"] > 0
    (leader,) = replicas_of(cluster, "card", catalog)
    (raylet,) = stage_ranks().values()
    assert raylet != raylet_in(Path(f"/proc/{leader.pid}/environ").read_bytes().split(b"\0"))


def test_a_lost_stage_takes_its_core_down_and_another_comes(gateway: ServedProcess) -> None:
    before = answer(gateway).json()["choices"]
    (lost,) = stage_ranks()

    def answered_anew() -> bool:
        # The loss is noticed only at a step, so one has to be requested.
        reply = answer(gateway)
        return reply.headers.get("x-aio-tier") == "2" and lost not in stage_ranks()

    os.kill(lost, signal.SIGKILL)
    until(answered_anew)

    assert answer(gateway).json()["choices"] == before
