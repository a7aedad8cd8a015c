"""`aio plan`: how many replicas a load needs within its objectives, and what they cost (SPEC AS-07, FR-04, TB-08);
`aio cost`: what routing would save between two models, before anything is set up, and what a traffic mix of a
catalogue costs (RT-09); `aio fleet`: predictive scaling of a cluster.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.operations.cli.group import LazyGroup
from gateway.operations.cli.options import catalog_option, echo_answer, json_option, settings_from, table

if TYPE_CHECKING:
    from gateway.planning.capacity.capacity import Objectives, Plan
    from gateway.planning.capacity.replica_profile import ReplicaProfile
    from gateway.planning.capacity.scheduled_core import SimulatedSchedule
    from gateway.planning.capacity.workload import Workload
    from tiers.catalog.pricing import BlendedCost
    from tiers.catalog.tier_spec import Price


def percent_shares(context: click.Context, parameter: click.Parameter, value: str) -> tuple[float, ...]:
    """A click callback that parses percentages such as 60/20/15/5 as shares."""
    try:
        return tuple(float(part) / 100 for part in value.replace("/", ",").split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of percentages such as 60/20/15/5") from None


def _dollars(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[float, ...] | None:
    try:
        return None if value is None else tuple(float(part) for part in value.replace("/", ",").split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of US dollars such as 0.0001,0.0005,0.003,0.01") from None


PROMPT_TOKENS, ANSWER_TOKENS = 1000, 200
_OWN_PRICE = re.compile(r"(\d+(?:\.\d+)?)/(\d+(?:\.\d+)?)")


@click.command()
@click.option("--from", "strong", metavar="MODEL", help="The model that answers every request now, such as gpt-5.")
@click.option(
    "--to",
    "cheap",
    metavar="MODEL",
    help="The model for easy requests. A name of the price list, PROVIDER:MODEL, or dollars per million tokens in/out "
    "such as 0.05/0.15.",
)
@click.option("--requests", type=click.IntRange(min=1), default=1_000_000, help="With --from.")
@click.option(
    "--easy",
    type=click.FloatRange(0, 100),
    default=60,
    help="Percentage of requests that the cheap model answers well enough; with --from.",
)
@click.option("--mix", callback=percent_shares, default="60/20/15/5", help="Percentages of the requests by tier.")
@click.option(
    "--costs", callback=_dollars, metavar="USD,…", help="Dollars per request by tier.  [the catalogue's, from tokens]"
)
@click.option(
    "--prompt-tokens",
    type=click.IntRange(min=0),
    help="Tokens of a prompt.  [with --from 1000, else the catalogue's reference]",
)
@click.option(
    "--answer-tokens",
    type=click.IntRange(min=0),
    help="Tokens of an answer.  [with --from 200, else the catalogue's estimate by tier]",
)
@click.option("--baseline", type=click.IntRange(min=1), help="The tier to compare with.  [3, a 70B's]")
@click.option("--check-rate", type=click.FloatRange(0, 1), default=0.05, help="Share of answers that is checked.")
@click.option("--checked", default="1,2", metavar="TIER,…", help="Tier whose answers the last tier checks.")
@catalog_option
@json_option
def cost(
    strong: str | None,
    cheap: str | None,
    requests: int,
    easy: float,
    mix: tuple[float, ...],
    costs: tuple[float, ...] | None,
    prompt_tokens: int | None,
    answer_tokens: int | None,
    baseline: int | None,
    check_rate: float,
    checked: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Calculate what routing saves: between two models (--from, --to), or for a traffic mix of a catalogue.

    \b
    aio cost --from gpt-5 --to gpt-5-mini --requests 1000000 --easy 60

    Both without and with the cost of verifying a sample of the cheap answers.
    """
    if strong is not None or cheap is not None:
        if strong is None or cheap is None:
            raise click.UsageError("--from and --to go together: the model of now, and the one for easy requests")
        tokens = (
            PROMPT_TOKENS if prompt_tokens is None else prompt_tokens,
            ANSWER_TOKENS if answer_tokens is None else answer_tokens,
        )
        return _between(strong, cheap, requests, easy / 100, tokens, check_rate, as_json=as_json)
    from tiers.catalog.load import load_catalog
    from tiers.catalog.pricing import blended_cost, predicted_costs, request_cost_usd

    if costs is None:
        catalog = load_catalog(settings_from(**options).catalog)
        prompt = catalog.reference_prompt_tokens if prompt_tokens is None else prompt_tokens
        costs = tuple(predicted_costs(catalog, prompt, None))
        if answer_tokens is not None:
            costs = tuple(request_cost_usd(spec.price, prompt, answer_tokens) for spec in catalog.tiers)
    compared = baseline or min(3, len(costs))
    tiers = [int(part) for part in checked.split(",") if part.strip().isdigit()]
    if compared > len(costs) or any(not 1 <= k <= len(costs) for k in tiers):
        raise click.UsageError(f"there are {len(costs)} tiers; --baseline and --checked must be among them")
    try:
        found = blended_cost(costs, mix, baseline_cost=costs[compared - 1], check_rate=check_rate, checked_tiers=tiers)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    echo_answer(
        as_json,
        {"mix": mix, "costs_usd": costs, "baseline_tier": compared, "blended": found},
        _cost_text(mix, costs, compared, check_rate, found),
    )
    return None


def _between(
    strong: str, cheap: str, requests: int, easy: float, tokens: tuple[int, int], check_rate: float, *, as_json: bool
) -> None:
    """Print what `requests` cost with `strong` alone, and with `cheap` for the easy ones."""
    from tiers.catalog.pricing import blended_cost, request_cost_usd

    prices = [_price_of(cheap), _price_of(strong)]
    each = [request_cost_usd(price, tokens[0] * 1000, tokens[1] * 1000) / 1000 for price in prices]
    if each[1] <= each[0]:
        raise click.UsageError(f"{cheap} costs ${each[0]:.6f} a request, not less than ${each[1]:.6f} of {strong}")
    shares = (easy, 1 - easy)
    found = blended_cost(each, shares, baseline_cost=each[1], check_rate=check_rate, checked_tiers=[1])
    now, then, checked = (
        f"${usd * requests:,.2f}" for usd in (each[1], found.per_request, found.per_request_with_checks)
    )
    price = prices[1]
    rows = [
        [f"{strong} for all {requests:,} requests", now, f"{tokens[0]} + {tokens[1]} tokens at {_dollars_of(price)}"],
        [f"{cheap} for the easy {easy:.0%}", then, f"{found.saving:.0%} less; {cheap} at {_dollars_of(prices[0])}"],
        [f"{check_rate:.0%} of those verified by {strong}", checked, f"{found.saving_with_checks:.0%} less"],
    ]
    answer = {"requests": requests, "easy": easy, "costs_usd": each, "blended": found}
    echo_answer(as_json, answer, table(rows[0], rows[1:]))


def _price_of(model: str) -> "Price":
    """Return the price of a model's name, of PROVIDER:MODEL, or as given. Raises `click.UsageError`."""
    from tiers.catalog.price_list import listed_model, similar_listed
    from tiers.catalog.tier_spec import Price

    if own := _OWN_PRICE.fullmatch(model):
        return Price(input_usd_per_million=float(own[1]), output_usd_per_million=float(own[2]))
    provider, separator, name = model.partition(":")
    found = listed_model(model) or (listed_model(name, provider=provider) if separator else None)
    if found is None:
        similar = ", ".join(similar_listed(name or model, provider=provider if separator else None))
        raise click.UsageError(
            f"the price list has no {model!r}{f'; it has {similar}' if similar else ''}; give PROVIDER:MODEL such as "
            "groq:llama-3.3-70b-versatile, or dollars per million tokens in/out such as 0.05/0.15"
        )
    return found.price


def _dollars_of(price: "Price") -> str:
    return f"${price.input_usd_per_million:g} in, ${price.output_usd_per_million:g} out per million"


def _cost_text(
    mix: tuple[float, ...], costs: tuple[float, ...], baseline: int, check_rate: float, found: "BlendedCost"
) -> str:
    rows = [
        [str(k), f"{share:.1%}", f"${usd:.6f}", f"${share * usd:.6f}"]
        for k, (share, usd) in enumerate(zip(mix, costs, strict=True), start=1)
    ]
    return "\n".join(
        [
            table(["tier", "share", "per request", "its part"], rows),
            "",
            f"blended: ${found.per_request:.5f} per request, {found.saving:.0%} less than tier {baseline} alone "
            f"(${costs[baseline - 1]:.5f})",
            f"with {check_rate:.0%} checked: ${found.per_request_with_checks:.5f}, {found.saving_with_checks:.0%} less",
        ]
    )


@click.command()
@click.option("--rate", type=float, help="Requests per second.")
@click.option("--per-day", type=float, help="Requests per day, instead of --rate.")
@click.option("--prompt-tokens", type=float, default=500, help="Mean tokens of a prompt.")
@click.option("--output-tokens", type=float, default=200, help="Mean tokens of an answer.")
@click.option("--cached", type=float, default=0.0, help="Share of a prompt in the prefix cache.")
@click.option("--trace", type=click.Path(path_type=Path), help="Rate and lengths from a CSV or JSONL of requests.")
@click.option("--trace-unit", type=click.Choice(["s", "ms"]), default="s", help="Unit of the trace's times.")
@click.option("--peak", type=click.FloatRange(1), default=1.0, help="Planned rate divided by the given rate.")
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
@click.option("--quantile", type=float, default=0.99, help="Quantile at which the TTFT and E2E objectives hold.")
@click.option("--busy", type=float, default=1.0, help="Most of a replica's maximum rate to use.")
@click.option("--spare", type=click.IntRange(min=0), show_default=False, default=0, help="Spare replicas.")
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

    from gateway.planning.capacity.capacity import Objectives, cheapest, knob_profile
    from gateway.planning.capacity.replica_profile import replica_profile
    from gateway.planning.capacity.workload import Workload, per_second, read_trace, trace_workload

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
    answer, text = {"load": load, "objectives": wanted, "plan": found}, _text(load, wanted, found)
    if simulated is not None:
        answer, text = answer | {"simulation": simulated}, f"{text}\n{_simulated_text(simulated)}"
    echo_answer(as_json, answer, text)


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
        from gateway.planning.capacity.scheduled_core import simulate_schedule
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


fleet = LazyGroup(
    name="fleet",
    help="Predictive scaling of replicas.",
    commands={
        "serve": ("gateway.planning.commands.plan:serve", "Serve the target that a cluster's autoscaler reads."),
    },
)


@click.command()
@click.option(
    "--gateway", "gateways", multiple=True, required=True, metavar="URL", help="Gateway to scrape; may be repeated."
)
@click.option("--tier", "tiers", multiple=True, required=True, metavar="N=PROFILE", help="As for `aio plan --replica`.")
@click.option("--cold-start", type=click.FloatRange(min=0), help="Start-up seconds of a replica.  [the profile's]")
@click.option("--interval", type=click.FloatRange(min=1), default=5.0, help="Seconds between scrapes.")
@click.option("--warm", type=click.IntRange(min=1), default=3, help="Minimum replicas of a tier.")
@click.option("--most", type=click.IntRange(min=1), default=64, help="Maximum replicas of a tier.")
@click.option("--busy", type=float, default=0.8, help="Target utilisation of a replica's best rate.")
@click.option("--quantile", type=float, default=0.9, help="Quantile of the forecast's errors to keep in reserve.")
@click.option("--down-window", type=float, default=900.0, help="Seconds before scaling down.")
@click.option("--host", default="127.0.0.1")
@click.option("--port", type=int, default=8090)
def serve(
    gateways: tuple[str, ...],
    tiers: tuple[str, ...],
    cold_start: float | None,
    interval: float,
    warm: int,
    most: int,
    busy: float,
    quantile: float,
    down_window: float,
    host: str,
    port: int,
) -> None:
    """Scrape gateways and serve `GET /v1/fleet` (JSON) and `GET /metrics` (Prometheus)."""
    import uvicorn

    from gateway.planning.capacity.replica_profile import replica_profile
    from gateway.planning.scaling.predictive import FleetSettings, PredictiveKnobs, ServiceObjectives
    from gateway.planning.scaling.target_server import FleetTargets, TargetService, target_app

    if any("=" not in tier for tier in tiers):
        raise click.UsageError("--tier takes a number and a profile, such as 1=smollm2-135m-int4-cpu")
    profiles = {number: replica_profile(name) for number, _, name in (tier.partition("=") for tier in tiers)}
    targets = FleetTargets(
        profiles,
        {
            number: FleetSettings(
                cold_start_s=profile.cold_start_s if cold_start is None else cold_start,
                least=warm,
                most=most,
                interval_s=interval,
            )
            for number, profile in profiles.items()
        },
        objectives=ServiceObjectives(),
        knobs=PredictiveKnobs(busy=busy, quantile=quantile, down_window_s=down_window),
    )
    uvicorn.run(target_app(TargetService(targets, gateways, interval)), host=host, port=port, log_level="warning")
