"""`python -m benchmarks cluster`: what the way through a cluster costs, and how fast a lost core is back."""

import tempfile
from typing import TYPE_CHECKING, Any

import click

from gateway.operations.cli.options import (
    cache_dir_option,
    catalog_option,
    echo_json,
    json_option,
    settings_from,
    staged_progress,
)

if TYPE_CHECKING:
    from benchmarks.gateway.cluster import ClusterResult


@click.command()
@click.option("--rounds", type=click.IntRange(min=2), default=12, show_default=True, help="Pairs after one more.")
@click.option("--requests", type=click.IntRange(min=1), default=32, show_default=True, help="Of a round.")
@click.option("--concurrency", type=click.IntRange(min=1), default=16, show_default=True)
@click.option("--kills", type=click.IntRange(min=0), default=2, show_default=True, help="Recoveries to time.")
@catalog_option
@cache_dir_option
@json_option
def cluster(rounds: int, requests: int, concurrency: int, kills: int, as_json: bool, **given: Any) -> None:
    """The first model of the CPU's core on a Ray node of this machine, compared with the same core in this process."""
    from gateway.operations.cli.cluster import require_ray
    from tiers.catalog.load import load_catalog

    require_ray()
    from benchmarks.gateway.cluster import Load, bench_cluster

    with tempfile.TemporaryDirectory(prefix="aio-bench-") as folder:
        settings = settings_from(data_dir=folder, **given)
        load = Load(requests=requests, concurrency=concurrency)
        with staged_progress("a cluster of one node") as progress:
            figures = bench_cluster(
                load_catalog(settings.catalog), settings, load, rounds=rounds, kills=kills, progress=progress
            )
    echo_json(figures) if as_json else click.echo(_text(figures))


def _text(figures: "ClusterResult") -> str:
    here, there, ratio = figures.here, figures.there, figures.ratio
    assert here is not None
    assert there is not None
    lines = [
        f"{figures.model}, {figures.rounds} pairs of rounds",
        f"  in this process  {here.median:8.1f} tokens/s ({here.low:.1f} to {here.high:.1f})",
        f"  on the cluster   {there.median:8.1f} tokens/s ({there.low:.1f} to {there.high:.1f})",
        f"  ratio            {ratio.median:8.3f} (95%: {ratio.low:.3f} to {ratio.high:.3f})",
        f"  cold start       {figures.cold_seconds:8.1f} s",
        *(f"  recovery         {seconds:8.1f} s after a kill" for seconds in figures.recovery_seconds),
    ]
    return "\n".join(lines)
