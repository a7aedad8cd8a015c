"""`python -m benchmarks peers`: every engine and gateway of today and ours, in one run, as one table."""

import asyncio
import signal
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import msgspec

from benchmarks.gateway.proxy import bench_proxy, proxied_gateway
from benchmarks.gateway.target import CHAT, MESSAGES, Target
from benchmarks.gateway.upstream import running_upstream
from benchmarks.peers.engines import LOADS, OURS, EngineLoad, System, running_engines
from benchmarks.peers.environments import PEERS, PeersError, installed
from benchmarks.peers.gateways import GATEWAYS, running_gateways
from benchmarks.report.kept import keep_option, out_option
from benchmarks.report.measurement import Measurement
from benchmarks.report.peer_tables import gateways_table, peer_tables, results_of
from gateway.base.settings import Settings
from gateway.cli.options import NEW_FOLDER, setting_options, settings_from
from gateway.planning.load_test.run import busy_share, summary
from gateway.planning.load_test.workload import BenchOptions

_IN_FLIGHT = 8
Progress = Callable[[str], None]


async def compare_engines(
    systems: Sequence[System], loads: Sequence[EngineLoad], measurement: Measurement, rounds: int, progress: Progress
) -> None:
    """Add to `measurement` one row per round, load and system, as far as it lacks them. Systems take turns, every other
    round backwards. One small load warms each up. Raises `PeersError`."""
    for system in systems:
        await system.measured(EngineLoad("warm-up", 1, 2, 128, 16).load(0, system.name))
    for turn in range(rounds):
        for load in loads:
            for system in systems[::-1] if turn % 2 else systems:
                where = {"round": turn, "load": load.name, "transport": system.transport, "system": system.name}
                columns = {"concurrency": load.concurrency}
                if not system.takes(load) or measurement.find(**where, **columns) is not None:
                    continue
                progress(f"round {turn + 1}/{rounds}: {load.name}, {load.concurrency} in flight, {system.name}")
                notes = {"busy_before": await _settled()}
                timings, wall = await system.measured(load.load(turn, system.name))
                measurement.add(where | summary(columns, timings, wall, BenchOptions(), notes))


async def _settled() -> float | None:
    """The processors' busy share (None: unknown), when the turn before has ended: vLLM spins for seconds after its
    last request."""
    for _ in range(40):
        busy = await busy_share(0.2)
        if busy is None or busy < 0.1:
            break
    return busy


async def compare_gateways(targets: Sequence[Target], measurement: Measurement, rounds: int, seconds: float) -> None:
    """Add what every gateway answers at eight in flight, whole and streamed: chats, and messages where it speaks them
    at all."""
    for path in (CHAT, MESSAGES):
        # The upstream and nginx know chats alone.
        asked = [
            msgspec.structs.replace(target, path=path)
            for target in targets
            if path == CHAT or target.name not in ("direct", "nginx")
        ]
        load = bench_proxy(asked, concurrency=[_IN_FLIGHT], rate=0.0, seconds=seconds, rounds=rounds)
        async for row in load:
            measurement.add({"api": path, **msgspec.structs.asdict(row)})


@click.command()
@click.argument("peers", default="build/peers", type=NEW_FOLDER, metavar="[FOLDER]")
@click.option("--install", is_flag=True, help="Install what is missing in FOLDER, and end.")
@click.option("--without", multiple=True, type=click.Choice(list(PEERS)), help="Leave this one out; may be repeated.")
@click.option("--rounds", type=click.IntRange(min=1), default=3)
@click.option("--seconds", type=click.FloatRange(min=0.1), default=1.0, help="Of a gateway's turn.")
@click.option("--quick", is_flag=True, help="Few small requests: shows that everything runs, measures nothing.")
@out_option
@keep_option
@setting_options("catalog", "cache_dir")
def peers(
    peers: Path, install: bool, without: tuple[str, ...], rounds: int, seconds: float, quick: bool, out: Path | None,
    keep: bool, **arguments: Any,
) -> None:  # fmt: skip
    """Compare with the engines and gateways of today, which are installed in FOLDER on first use, apart from this
    project: OpenVINO GenAI, llama.cpp, vLLM, LiteLLM, Switchyard (PyPI; pip, cmake and a compiler) and Portkey (npm).

    Example: python -m benchmarks peers build/peers --rounds 2 --out peers.jsonl
    """
    loads = (
        [replace(load, requests=1, words=load.words and 8, output_tokens=4) for load in LOADS] if quick else list(LOADS)
    )
    versions = {name: peer.version for name, peer in PEERS.items() if name not in without}
    about = {"peers": versions, "rounds": rounds, "seconds": seconds, "loads": loads}
    try:
        for name in versions:
            installed(name, peers.resolve())
        if install:
            return
        measurement = Measurement.begin("peers", about, out, keep=keep)
        with tempfile.TemporaryDirectory(prefix="aio-bench-") as folder:
            settings = settings_from(data_dir=folder, **arguments)
            if measurement.finished is None:
                asyncio.run(_run(settings, peers.resolve(), Path(folder), measurement, about))
    except PeersError as error:
        raise click.ClickException(str(error)) from error
    except asyncio.CancelledError:
        raise click.ClickException("stopped; the same command goes on with what is in --out") from None
    measurement.finish(None)
    click.echo(peer_tables(results_of(measurement.rows)))
    click.echo(gateways_table(measurement.rows))


async def _run(settings: Settings, peers: Path, folder: Path, measurement: Measurement, about: dict[str, Any]) -> None:
    # Whatever ends this command ends the servers that it started.
    task, names, rounds = asyncio.current_task(), about["peers"], about["rounds"]
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with running_engines(settings, peers, folder, names) as systems:
        await compare_engines(systems, about["loads"], measurement, rounds, lambda line: click.echo(line, err=True))
    if measurement.find(target=OURS) is None:
        async with AsyncExitStack() as stack:
            upstream = await stack.enter_async_context(running_upstream())
            ours = await stack.enter_async_context(proxied_gateway(upstream, folder))
            chosen = [name for name in GATEWAYS if name in names]
            others = await stack.enter_async_context(running_gateways(peers, upstream, folder, chosen))
            direct = Target("direct", upstream.removesuffix("/v1"), "mock")
            await compare_gateways([direct, ours, *others], measurement, rounds, about["seconds"])
