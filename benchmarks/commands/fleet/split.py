"""`python -m benchmarks fleet-split`: what prefill and decode replicas of their own gain, and where they break even."""

from pathlib import Path

import click

from gateway.operations.cli.options import echo_json, json_option, table


@click.command()
@click.option("--trace", type=click.Path(path_type=Path), help="CSV or JSONL.  [the Mooncake trace in the data folder]")
@click.option(
    "--trace-unit", type=click.Choice(["s", "ms"]), default="ms", show_default=True, help="Unit of the trace's times."
)
@click.option("--replica", default="llama-3.3-70b/fp8/8xh100", show_default=True, help="As for `aio plan`.")
@click.option("--replicas", type=click.IntRange(min=2), default=8, show_default=True, help="Total number of replicas.")
@click.option("--chunk", type=click.IntRange(min=1), default=2048, show_default=True, help="Prompt tokens per step.")
@click.option(
    "--itl-ms",
    "itls",
    type=float,
    multiple=True,
    default=(8, 10, 12, 15, 20, 33),
    show_default=True,
    help="Objectives for the mean time between tokens.",
)
@click.option(
    "--gbit",
    "links",
    type=float,
    multiple=True,
    default=(10, 25, 50, 100, 400),
    show_default=True,
    help="Link bandwidth per request.",
)
@click.option(
    "--ttft-ms",
    type=float,
    default=800.0,
    show_default=True,
    help="Objective, or three times the unloaded time if longer.",
)
@json_option
def split(
    trace: Path | None,
    trace_unit: str,
    replica: str,
    replicas: int,
    chunk: int,
    itls: tuple[float, ...],
    links: tuple[float, ...],
    ttft_ms: float,
    as_json: bool,
) -> None:
    """Find the multiple of a trace's rate that a fleet serves with 90 % within objectives, combined and best split."""
    import msgspec

    from benchmarks.fleet.disaggregated import Split, Transfer, best_split, kv_bytes_of, requests_at, spread
    from classifier.training.data.dataset import data_folder
    from gateway.planning.capacity.replica_profile import replica_profile
    from gateway.planning.capacity.workload import read_trace
    from gateway.planning.scaling.scaling import ServiceObjectives

    path = trace or data_folder() / "traces/mooncake_conversation.jsonl"
    arrivals = spread(read_trace(path, "ms" if trace_unit == "ms" else "s"))
    profile = msgspec.structs.replace(replica_profile(replica), chunk_tokens=chunk)
    rows: list[tuple[float, float, Split]] = []
    for itl in itls:
        for gbit in links if itl == itls[len(itls) // 2] else links[-1:]:
            found = best_split(
                lambda speed: requests_at(arrivals, speed),
                profile,
                Transfer(bytes_per_token=kv_bytes_of(profile), bytes_per_s=gbit * 1e9 / 8),
                ServiceObjectives(ttft_s=ttft_ms / 1e3, itl_s=itl / 1e3),
                replicas=replicas,
            )
            rows.append((itl, gbit, found))
    if as_json:
        echo_json([{"itl_ms": itl, "gbit": gbit, "split": found, "gain": found.gain} for itl, gbit, found in rows])
        return
    head = ["ITL ms", "Gbit/s", "together", "apart", "prefill + decode", "gain"]
    cells = [
        [
            f"{itl:g}",
            f"{gbit:g}",
            f"{found.together:.2f}",
            f"{found.apart:.2f}",
            f"{found.prefill_replicas} + {found.replicas - found.prefill_replicas}",
            f"{found.gain:.2f}",
        ]
        for itl, gbit, found in rows
    ]
    click.echo(table(head, cells))
