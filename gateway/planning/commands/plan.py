"""`aio plan`: how many replicas a load needs within its objectives, and what they cost (SPEC AS-07, FR-04, TB-08)."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.operations.cli.options import echo_json, json_option

if TYPE_CHECKING:
    from gateway.planning.capacity.capacity import Objectives, Plan
    from gateway.planning.capacity.replica_profile import ReplicaProfile
    from gateway.planning.capacity.workload import Workload
    from gateway.planning.simulated.scheduled_core import SimulatedSchedule


@click.command()
@click.option("--rate", type=float, help="Requests per second.")
@click.option("--per-day", type=float, help="Requests per day, instead of --rate.")
@click.option("--prompt-tokens", type=float, default=500, show_default=True, help="Mean tokens of a prompt.")
@click.option("--output-tokens", type=float, default=200, show_default=True, help="Mean tokens of an answer.")
@click.option("--cached", type=float, default=0.0, show_default=True, help="Share of a prompt in the prefix cache.")
@click.option("--trace", type=click.Path(path_type=Path), help="Rate and lengths from a CSV or JSONL of requests.")
@click.option(
    "--trace-unit", type=click.Choice(["s", "ms"]), default="s", show_default=True, help="Unit of the trace's times."
)
@click.option(
    "--peak", type=click.FloatRange(1), default=1.0, show_default=True, help="Planned rate divided by the given rate."
)
@click.option(
    "--replica",
    "replicas",
    multiple=True,
    metavar="PROFILE",
    help="A packaged profile or MODEL/FORMAT/[COUNTx]DEVICE; the cheapest is chosen.  [smollm2-135m-int4-cpu]",
)
@click.option("--usd-per-hour", type=click.FloatRange(min=0), help="Price of one replica.  [an assumption by device]")
@click.option("--ttft-ms", type=float, help="Objective at --quantile.")
@click.option("--itl-ms", type=float, help="Objective for the mean time between tokens.")
@click.option("--e2e-ms", type=float, help="Objective at --quantile.")
@click.option(
    "--quantile",
    type=float,
    default=0.99,
    show_default=True,
    help="Quantile at which the TTFT and E2E objectives hold.",
)
@click.option("--busy", type=float, default=1.0, show_default=True, help="Most of a replica's maximum rate to use.")
@click.option("--spare", type=click.IntRange(min=0), default=0, help="Spare replicas.")
@click.option(
    "--profile", "knobs", metavar="NAME", help="throughput, latency, tail or cost, instead of the objectives."
)
@click.option(
    "--simulate",
    type=click.IntRange(min=100),
    metavar="REQUESTS",
    help="Serve so many on one replica in virtual time, by the scheduler of the core: TTFT and ITL at p50 and p99.",
)
@json_option
def plan(
    rate: float | None,
    per_day: float | None,
    prompt_tokens: float,
    output_tokens: float,
    cached: float,
    trace: Path | None,
    trace_unit: str,
    peak: float,
    replicas: tuple[str, ...],
    usd_per_hour: float | None,
    ttft_ms: float | None,
    itl_ms: float | None,
    e2e_ms: float | None,
    quantile: float,
    busy: float,
    spare: int,
    knobs: str | None,
    simulate: int | None,
    as_json: bool,
) -> None:
    """Calculate replicas, devices and dollars for a rate of requests and their lengths."""
    import msgspec

    from gateway.planning.capacity.capacity import Objectives, cheapest
    from gateway.planning.capacity.knob_profiles import knob_profile
    from gateway.planning.capacity.replica_profile import replica_profile
    from gateway.planning.capacity.trace_file import read_trace
    from gateway.planning.capacity.workload import Workload, per_second, trace_workload

    if sum(given is not None for given in (rate, per_day, trace)) != 1:
        raise click.UsageError("give one of --rate, --per-day and --trace")
    if trace is not None:
        load = trace_workload(read_trace(trace, "ms" if trace_unit == "ms" else "s"))
        load = msgspec.structs.replace(load, cached_share=cached)
    else:
        given = rate if rate is not None else per_second(per_day or 0.0)
        load = Workload(rate=given, prompt_tokens=prompt_tokens, output_tokens=output_tokens, cached_share=cached)
    load = load.at(load.rate * peak)
    candidates = [replica_profile(name) for name in replicas or ("smollm2-135m-int4-cpu",)]
    if usd_per_hour is not None:
        candidates = [msgspec.structs.replace(each, usd_per_hour=usd_per_hour) for each in candidates]
    wanted = Objectives(
        ttft_s=_seconds(ttft_ms),
        itl_s=_seconds(itl_ms),
        e2e_s=_seconds(e2e_ms),
        quantile=quantile,
        most_busy=busy,
        spare=spare,
    )
    if knobs is not None:
        chosen = knob_profile(knobs)
        candidates, wanted = [chosen.applied(each) for each in candidates], chosen.objectives
    found = cheapest(candidates, load, wanted)
    simulated = None
    if simulate is not None:
        profile = next(each for each in candidates if each.name == found.profile)
        simulated = _simulated(profile, load.at(load.rate / found.replicas), simulate)
    if as_json:
        extra = {} if simulated is None else {"simulation": simulated}
        echo_json({"load": load, "objectives": wanted, "plan": found} | extra)
    else:
        click.echo(_text(load, wanted, found))
        if simulated is not None:
            click.echo(_simulated_text(simulated))


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1e3


def _text(load: "Workload", wanted: "Objectives", found: "Plan") -> str:
    each = found.each
    return "\n".join(
        [
            f"{load.rate:,.1f} requests/s of {load.prompt_tokens:,.0f} tokens in and {load.output_tokens:,.0f} out",
            f"{found.replicas:,} replicas of {found.profile} ({found.devices:,} devices; step times {found.evidence})",
            f"each: {each.in_flight:.1f} answers at once, {each.rate:.3f} requests/s, ITL {each.itl_s * 1e3:.1f} ms, "
            f"TTFT p{wanted.quantile * 100:g} {each.ttft_s * 1e3:,.0f} ms; limited by {found.bound}",
            f"in flight: {found.in_flight:,.0f} requests",
            f"${found.usd_per_hour:,.2f} an hour, ${found.usd_per_month:,.0f} a month, "
            f"${found.usd_per_1k_tokens:.6f} per 1k tokens, ${found.usd_per_1k_output_tokens:.6f} per 1k output tokens",
        ]
    )


def _simulated(profile: "ReplicaProfile", load: "Workload", requests: int) -> "SimulatedSchedule":
    """Raises `ClickException` where the core is not installed."""
    try:
        from gateway.planning.simulated.scheduled_core import simulate_schedule
    except ModuleNotFoundError as error:
        raise click.ClickException(f"--simulate runs the core: pip install 'aio-gateway[local]' ({error})") from error
    return simulate_schedule(profile, load, requests=requests)


def _simulated_text(found: "SimulatedSchedule") -> str:
    return (
        f"simulated, not measured: {found.requests:,} requests at {found.rate:.3f}/s on one replica, each step planned "
        f"by the scheduler of the core, step times {found.evidence}\n"
        f"TTFT p50 {found.ttft_p50_s * 1e3:,.0f} ms, p99 {found.ttft_p99_s * 1e3:,.0f} ms; "
        f"ITL p50 {found.itl_p50_s * 1e3:.1f} ms, p99 {found.itl_p99_s * 1e3:.1f} ms; "
        f"{found.mean_batch:.1f} sequences in a step, {found.preemptions:,} preempted"
    )
