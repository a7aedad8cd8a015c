"""`python -m benchmarks fleet`: fixed, reactive, predictive and oracle on recorded traces, as tables and as a plot."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.operations.cli.options import echo_json, json_option

if TYPE_CHECKING:
    from benchmarks.fleet.comparison import Comparison
    from benchmarks.fleet.scoring import Setting

AZURE = ("traces/azure_llm_code.csv", "traces/azure_llm_conv.csv")


@click.command()
@click.option(
    "--trace",
    "traces",
    multiple=True,
    type=click.Path(path_type=Path),
    help="CSV or JSONL of requests; may be repeated.  [the Azure traces in the data folder]",
)
@click.option(
    "--trace-unit", type=click.Choice(["s", "ms"]), default="s", show_default=True, help="Unit of the trace's times."
)
@click.option("--speed", type=click.FloatRange(min=0.01), default=1.0, show_default=True, help="Replay speed-up.")
@click.option("--replica", default="llama-3.1-8b/awq-int4/l4", show_default=True, help="As for `aio plan`.")
@click.option("--cold-start", type=click.FloatRange(min=0), help="Start-up seconds of a replica.  [the profile's]")
@click.option(
    "--interval",
    type=click.FloatRange(min=1),
    default=5.0,
    show_default=True,
    help="Step of the predictive rule, seconds.",
)
@click.option(
    "--reactive-interval",
    type=click.FloatRange(min=1),
    default=15.0,
    show_default=True,
    help="Interval of reactive rules; the HPA's default.",
)
@click.option("--warm", type=click.IntRange(min=1), default=3, show_default=True, help="Minimum replicas.")
@click.option("--most", type=click.IntRange(min=1), default=64, show_default=True, help="Maximum replicas.")
@click.option("--ttft-ms", type=float, default=500.0, show_default=True, help="Objective for the time to first token.")
@click.option(
    "--slowdown", type=float, default=3.0, show_default=True, help="Objective as a multiple of the unloaded time."
)
@click.option(
    "--itl-ms", type=float, default=100.0, show_default=True, help="Objective for the mean time between tokens."
)
@click.option("--page", type=click.Path(path_type=Path), help="Write the tables into this page, between its markers.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the fleets over time into this PNG.")
@json_option
def simulate(
    traces: tuple[Path, ...],
    trace_unit: str,
    speed: float,
    replica: str,
    cold_start: float | None,
    interval: float,
    reactive_interval: float,
    warm: int,
    most: int,
    ttft_ms: float,
    slowdown: float,
    itl_ms: float,
    page: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Compare scaling rules. Their knobs are chosen on the first 40 % of a trace's time and reported on the rest."""
    import msgspec

    from benchmarks.fleet.comparison_tables import comparison_text, write_between
    from benchmarks.fleet.scoring import Setting
    from classifier.training.data.dataset import data_folder
    from gateway.planning.capacity.replica_profile import replica_profile
    from gateway.planning.capacity.workload import read_trace
    from gateway.planning.scaling.scaling import FleetSettings, ServiceObjectives

    profile = replica_profile(replica)
    fleet = FleetSettings(
        cold_start_s=profile.cold_start_s if cold_start is None else cold_start,
        least=warm,
        most=most,
        interval_s=interval,
    )
    settings = [
        Setting(
            trace=path.stem,
            profile=profile,
            fleet=fleet,
            objectives=ServiceObjectives(ttft_s=ttft_ms / 1e3, slowdown=slowdown, itl_s=itl_ms / 1e3),
            arrivals=read_trace(path, "ms" if trace_unit == "ms" else "s"),
            reactive_interval_s=reactive_interval,
        ).at_speed(speed)
        for path in traces or tuple(data_folder() / name for name in AZURE)
    ]
    found = _compared(settings)
    if as_json:
        echo_json([msgspec.structs.replace(each, sizes={}) for each in found])
    text = "\n\n".join(comparison_text(each) for each in found)
    if not as_json:
        click.echo(text)
    if page is not None:
        write_between(page, "simulated", text)
    if plot is not None:
        from benchmarks.fleet.plots import plot_comparisons

        plot_comparisons(found, plot)


def _compared(settings: "list[Setting]") -> "list[Comparison]":
    """One process per trace, two at a time: each comparison uses a CPU for minutes."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    from benchmarks.fleet.comparison import compare

    if len(settings) == 1:
        return [compare(settings[0])]
    with ProcessPoolExecutor(max_workers=2, mp_context=get_context("spawn")) as pool:
        return list(pool.map(compare, settings))
