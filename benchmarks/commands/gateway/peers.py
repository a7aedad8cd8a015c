"""`python -m benchmarks peers`: other engines and ours under the same loads, in turn."""

import asyncio
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.commands.kept import keep_option, out_option
from gateway.operations.cli.options import cache_dir_option, catalog_option, settings_from

if TYPE_CHECKING:
    from benchmarks.report.measurement import Measurement


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
    from benchmarks.gateway.peers import LOADS, PEERS, QUICK, PeerLoad, PeersError
    from benchmarks.report.measurement import Measurement
    from benchmarks.report.peer_tables import peer_tables, results_of

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
    from benchmarks.gateway.peers import compare_with_peers

    # Whatever ends this command ends the servers that it started.
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await compare_with_peers(
        settings, scripts, chosen, measurement, rounds=rounds, loads=loads, progress=lambda s: click.echo(s, err=True)
    )
