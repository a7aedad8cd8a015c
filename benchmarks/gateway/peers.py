"""Other engines and ours under the same loads, in turn, round after round, on one machine.

The peers' scripts are not part of this package: a folder with `compare.py` and `peers/`. `compare.py` runs targets
(NAME=URL MODEL or NAME=COMMAND) in turn, each of which prints rows of JSON with the columns of `aio bench core`.
"""

import asyncio
import json
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

from benchmarks.report.kept import keep_option, out_option
from benchmarks.report.measurement import Measurement
from benchmarks.report.peer_tables import peer_tables, results_of
from gateway.base.configuration import own_command
from gateway.base.settings import Settings
from gateway.operations.cli.options import cache_dir_option, catalog_option, settings_from
from gateway.planning.load_test.http_target import running_server

Transport = Literal["in process", "http"]
Progress = Callable[[str], None]
OURS = "aio"
_READY_SECONDS = 900


class PeersError(RuntimeError):
    """A peer could not be measured; the message says which command failed and what it said last."""


@dataclass(frozen=True, slots=True)
class PeerLoad:
    """What one call of `compare.py` offers to every target: a name for tables, and options of a load."""

    name: str
    options: tuple[str, ...]


LOADS = (
    PeerLoad("one stream", ("--concurrency", "1", "--requests", "12")),
    PeerLoad("many streams", ("--concurrency", "8", "32", "--rounds", "4")),
    PeerLoad("most streams", ("--concurrency", "64", "128", "--rounds", "2")),
    PeerLoad(
        "long prompt", ("--concurrency", "1", "--requests", "6", "--prompt-tokens", "1024", "--output-tokens", "2")
    ),
    PeerLoad(
        "short prompt", ("--concurrency", "1", "--requests", "20", "--prompt-tokens", "16", "--output-tokens", "2")
    ),
)


# Put after the options of a load: enough to see that everything runs.
QUICK = ("--concurrency", "2", "--requests", "2", "--rounds", "1", "--prompt-tokens", "16", "--output-tokens", "4")


@dataclass(frozen=True, slots=True)
class Peer:
    """An engine with a script of its own: one that measures itself in process, or one that serves on `port`."""

    name: str
    transport: Transport
    script: str
    port: int | None = None

    def command(self, scripts: Path) -> list[str]:
        return [sys.executable, str(scripts / "peers" / self.script)]


PEERS = (
    Peer("openvino", "in process", "openvino_inprocess.py"),
    Peer("vllm", "http", "vllm_cpu_server.py", 8102),
)
# The name under which every serving peer offers the model.
_PEER_MODEL = "smollm2"


async def compare_with_peers(
    settings: Settings,
    scripts: Path,
    peers: Sequence[Peer],
    measurement: Measurement,
    *,
    rounds: int,
    loads: Sequence[PeerLoad] = LOADS,
    progress: Progress = lambda _: None,
) -> None:
    """Add to `measurement` one row per round, load and system, as far as it lacks them.

    In-process engines first, while no server is up. Then servers, all up at the same time and asked in turn; each round
    has prompts of its own, so that no server knows them from the round before. Raises `PeersError`.
    """
    if not (scripts / "compare.py").is_file():
        raise PeersError(f"{scripts} has no compare.py; give the folder of the peers' scripts")
    for transport in ("in process", "http"):
        chosen = [peer for peer in peers if peer.transport == transport]
        wanted = [(turn, load) for turn in range(rounds) for load in loads]
        missing = [w for w in wanted if measurement.find(round=w[0], load=w[1].name, transport=transport) is None]
        if not chosen or not missing:
            continue
        async with AsyncExitStack() as stack:
            targets = {peer.name: await _target(peer, scripts, stack, progress) for peer in chosen}
            targets[OURS] = await _own_target(transport, settings, stack)
            for turn, load in missing:
                progress(f"{transport}, round {turn + 1}/{rounds}: {load.name}")
                options = (*load.options, "--seed", str(7 + turn))
                for row in await _compared(scripts, targets, options):
                    system = row.pop("name")
                    measurement.add({"round": turn, "load": load.name, "transport": transport, "system": system} | row)


async def _target(peer: Peer, scripts: Path, stack: AsyncExitStack, progress: Progress) -> str:
    """What `compare.py` is given for `peer`; its server, if it has one, runs until `stack` is closed."""
    if peer.port is None:
        return shlex.join(peer.command(scripts))
    progress(f"starting {peer.name}")
    command = [*peer.command(scripts), "--port", str(peer.port), "--wait", str(_READY_SECONDS)]
    await stack.enter_async_context(served(command, peer.name))
    return f"http://127.0.0.1:{peer.port} {_PEER_MODEL}"


async def _own_target(transport: Transport, settings: Settings, stack: AsyncExitStack) -> str:
    if transport == "in process":
        catalog = ["--catalog", settings.catalog, "--cache-dir", str(settings.cache_path)]
        return shlex.join(own_command("bench", "core", *catalog))
    server = await stack.enter_async_context(running_server(settings, {"AIO_MONITOR": "false"}))
    return f"{server.url} tier-1"


@asynccontextmanager
async def served(command: list[str], name: str) -> AsyncIterator[None]:
    """A peer's server, from its line READY to the end of the block, when its whole process group ends. Raises
    `PeersError`."""
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE, start_new_session=True)
    said: list[str] = []
    assert process.stderr is not None
    try:
        async with asyncio.timeout(_READY_SECONDS):
            async for line in process.stderr:
                said.append(line.decode(errors="replace").rstrip())
                if said[-1].startswith("READY"):
                    break
            else:
                tail = "\n".join(said[-5:])
                raise PeersError(f"{name}: {shlex.join(command)} ended with {await process.wait()}:\n{tail}")
        drained = asyncio.create_task(process.stderr.read())
        yield
        drained.cancel()
    except TimeoutError as error:
        raise PeersError(f"{name} was not ready within {_READY_SECONDS} s") from error
    finally:
        await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a process, which leads a group, and what it started in it; a peer's script ends its own server."""
    for sign, seconds in ((signal.SIGTERM, 30), (signal.SIGKILL, 10)):
        if process.returncode is None:
            with suppress(ProcessLookupError, TimeoutError):
                os.killpg(process.pid, sign)
                await asyncio.wait_for(process.wait(), seconds)


async def _compared(scripts: Path, targets: dict[str, str], options: Iterable[str]) -> list[dict[str, Any]]:
    """The rows of one round over all targets."""
    with tempfile.TemporaryDirectory(prefix="aio-peers-") as folder:
        out = Path(folder) / "rows.jsonl"
        own = ["--rounds", "1", "--limit", "1800", "--json", "--out", str(out)]
        named = [f"{name}={target}" for name, target in targets.items()]
        command = [sys.executable, str(scripts / "compare.py"), *own, *named, "--", *options]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.DEVNULL, start_new_session=True
        )
        try:
            status = await process.wait()
        finally:
            await _end(process)
        if status or not out.exists():
            raise PeersError(f"failed with status {status}: {shlex.join(command)}")
        rows: list[dict[str, Any]] = [json.loads(line) for line in out.read_text().splitlines()]
        for row in rows:
            del row["round"]
        return rows


@click.command()
@click.argument("scripts", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--rounds", default=5, show_default=True)
@click.option("--only", multiple=True, metavar="PEER", help="Only these peers; may be repeated.  [openvino, vllm]")
@click.option(
    "--quick", is_flag=True, help="Two small requests per load: shows that everything runs, measures nothing."
)
@out_option
@keep_option
@catalog_option
@cache_dir_option
def peers(
    scripts: Path, rounds: int, only: tuple[str, ...], quick: bool, out: Path | None, keep: bool, **given: Any
) -> None:
    """Compare with the engines whose scripts are in the folder SCRIPTS (see docs/results/performance.md).

    Example: python -m benchmarks peers ./peers-scripts --rounds 5 --out peers.jsonl
    """

    if unknown := set(only) - {peer.name for peer in PEERS}:
        known = ", ".join(peer.name for peer in PEERS)
        raise click.UsageError(f"unknown peers {', '.join(sorted(unknown))}; there are {known}")
    chosen = [peer for peer in PEERS if not only or peer.name in only]
    loads = [PeerLoad(load.name, (*load.options, *QUICK)) for load in LOADS] if quick else list(LOADS)
    about = {"peers": [p.name for p in chosen], "rounds": rounds, "loads": {load.name: load.options for load in loads}}
    measurement = Measurement.begin("peers", about, out, keep=keep)
    with tempfile.TemporaryDirectory(prefix="aio-bench-") as folder:
        settings = settings_from(data_dir=folder, **given)
        try:
            asyncio.run(_run(settings, scripts.resolve(), chosen, measurement, rounds, loads))
        except PeersError as error:
            raise click.ClickException(str(error)) from error
        except asyncio.CancelledError:
            raise click.ClickException("stopped; the same command goes on with what is in --out") from None
    measurement.finish(None)
    click.echo(peer_tables(results_of(measurement.rows)))


async def _run(settings: Any, scripts: Path, chosen: Any, measurement: "Measurement", rounds: int, loads: Any) -> None:
    # Whatever ends this command ends the servers that it started.
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await compare_with_peers(
        settings, scripts, chosen, measurement, rounds=rounds, loads=loads, progress=lambda s: click.echo(s, err=True)
    )
