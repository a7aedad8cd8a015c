"""`aio plan`: how many replicas a load needs within its objectives, and what they cost (SPEC AS-07, FR-04, TB-08);
`aio cost`: what routing would save between two models, before anything is set up, and what a traffic mix of a
catalogue costs (RT-09); `aio fleet`: predictive scaling of a cluster.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click
import msgspec
from msgspec import Meta

from gateway.base.field_types import Count, Share, Whole
from gateway.base.settings import Settings
from gateway.cli.group import LazyGroup
from gateway.cli.options import echo_answer, json_option, table, with_settings
from gateway.cli.typed_options import options_of

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


class CostOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `aio cost`."""

    strong: Annotated[str, Meta(title="MODEL")] | None = msgspec.field(name="from", default=None)
    """The model that answers every request now, such as gpt-5."""
    cheap: Annotated[str, Meta(title="MODEL")] | None = msgspec.field(name="to", default=None)
    """The model for easy requests. A name of the price list, PROVIDER:MODEL, or dollars per million tokens in/out such
    as 0.05/0.15."""
    requests: Count = 1_000_000
    """With --from: number of requests."""
    easy: Annotated[float, Meta(ge=0, le=100)] = 60
    """With --from: percentage of requests that the cheap model answers well enough."""
    mix: Annotated[Any, Meta(extra={"type": str, "callback": percent_shares})] = "60/20/15/5"
    """Percentages of the requests by tier."""
    costs: Annotated[Any, Meta(title="USD,…", extra={"type": str, "callback": _dollars})] = None
    """Dollars per request by tier. [the catalogue's, from tokens]"""
    prompt_tokens: Whole | None = None
    """Tokens of a prompt. [with --from 1000, else the catalogue's reference]"""
    answer_tokens: Whole | None = None
    """Tokens of an answer. [with --from 200, else the catalogue's estimate by tier]"""
    baseline: Count | None = None
    """The tier to compare with. [3, a 70B's]"""
    check_rate: Share = 0.05
    """Share of answers that is checked."""
    checked: Annotated[str, Meta(title="TIER,…")] = "1,2"
    """Tiers whose answers the last tier checks."""


@click.command()
@options_of(CostOptions)
@with_settings("catalog")
@json_option
def cost(options: CostOptions, settings: Settings, as_json: bool) -> None:
    """Calculate what routing saves: between two models (--from, --to), or for a traffic mix of a catalogue.

    \b
    aio cost --from gpt-5 --to gpt-5-mini --requests 1000000 --easy 60

    Both without and with the cost of verifying a sample of the cheap answers.
    """
    if options.strong is not None or options.cheap is not None:
        return _between(options, as_json=as_json)
    from tiers.catalog.load import load_catalog
    from tiers.catalog.pricing import blended_cost, predicted_costs, request_cost_usd

    costs: tuple[float, ...] | None = options.costs
    if costs is None:
        loaded, prompt = load_catalog(settings.catalog), options.prompt_tokens
        prompt = loaded.reference_prompt_tokens if prompt is None else prompt
        costs = tuple(predicted_costs(loaded, prompt, None))
        if options.answer_tokens is not None:
            costs = tuple(request_cost_usd(spec.price, prompt, options.answer_tokens) for spec in loaded.tiers)
    compared, rate = options.baseline or min(3, len(costs)), options.check_rate
    tiers = [int(part) for part in options.checked.split(",") if part.strip().isdigit()]
    if compared > len(costs) or any(not 1 <= k <= len(costs) for k in tiers):
        raise click.UsageError(f"there are {len(costs)} tiers; --baseline and --checked must be among them")
    try:
        blended = blended_cost(
            costs, options.mix, baseline_cost=costs[compared - 1], check_rate=rate, checked_tiers=tiers
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    echo_answer(
        as_json,
        {"mix": options.mix, "costs_usd": costs, "baseline_tier": compared, "blended": blended},
        _cost_text(options.mix, costs, compared, rate, blended),
    )
    return None


def _between(options: CostOptions, *, as_json: bool) -> None:
    """Print what requests cost with the strong model alone, and with the cheap one for the easy ones."""
    from tiers.catalog.pricing import blended_cost, request_cost_usd

    strong, cheap, requests = options.strong, options.cheap, options.requests
    if strong is None or cheap is None:
        raise click.UsageError("give --from, the model that you use now, and --to, the model for easy requests")
    usual = ((options.prompt_tokens, PROMPT_TOKENS), (options.answer_tokens, ANSWER_TOKENS))
    tokens = [default if count is None else count for count, default in usual]
    easy, check_rate = options.easy / 100, options.check_rate
    prices = [_price_of(cheap), _price_of(strong)]
    each = [request_cost_usd(price, tokens[0] * 1000, tokens[1] * 1000) / 1000 for price in prices]
    if each[1] <= each[0]:
        raise click.UsageError(
            f"{cheap} costs ${each[0]:.6f} a request, which is not less than {strong} (${each[1]:.6f})"
        )
    shares = (easy, 1 - easy)
    blended = blended_cost(each, shares, baseline_cost=each[1], check_rate=check_rate, checked_tiers=[1])
    now, then, checked = (
        f"${usd * requests:,.2f}" for usd in (each[1], blended.per_request, blended.per_request_with_checks)
    )
    price = prices[1]
    rows = [
        [f"{strong} for all {requests:,} requests", now, f"{tokens[0]} + {tokens[1]} tokens at {_dollars_of(price)}"],
        [f"{cheap} for the easy {easy:.0%}", then, f"{blended.saving:.0%} less; {cheap} at {_dollars_of(prices[0])}"],
        [f"{check_rate:.0%} of those verified by {strong}", checked, f"{blended.saving_with_checks:.0%} less"],
    ]
    answer = {"requests": requests, "easy": easy, "costs_usd": each, "blended": blended}
    echo_answer(as_json, answer, table(rows[0], rows[1:]))


def _price_of(model: str) -> "Price":
    """Return the price of a model's name, of PROVIDER:MODEL, or as given. Raises `click.UsageError`."""
    from tiers.catalog.price_list import listed_model, similar_listed
    from tiers.catalog.tier_spec import Price

    if own := _OWN_PRICE.fullmatch(model):
        return Price(input_usd_per_million=float(own[1]), output_usd_per_million=float(own[2]))
    provider, separator, name = model.partition(":")
    listed = listed_model(model) or (listed_model(name, provider=provider) if separator else None)
    if listed is None:
        similar = ", ".join(similar_listed(name or model, provider=provider if separator else None))
        raise click.UsageError(
            f"the price list has no {model!r}{f'; it has {similar}' if similar else ''}; give PROVIDER:MODEL such as "
            "groq:llama-3.3-70b-versatile, or dollars per million tokens in/out such as 0.05/0.15"
        )
    return listed.price


def _dollars_of(price: "Price") -> str:
    return f"${price.input_usd_per_million:g} in, ${price.output_usd_per_million:g} out per million"


def _cost_text(
    mix: tuple[float, ...], costs: tuple[float, ...], baseline: int, check_rate: float, blended: "BlendedCost"
) -> str:
    rows = [
        [str(k), f"{share:.1%}", f"${usd:.6f}", f"${share * usd:.6f}"]
        for k, (share, usd) in enumerate(zip(mix, costs, strict=True), start=1)
    ]
    return "\n".join(
        [
            table(["tier", "share", "per request", "its part"], rows),
            "",
            f"blended: ${blended.per_request:.5f} per request, {blended.saving:.0%} less than tier {baseline} alone "
            f"(${costs[baseline - 1]:.5f})",
            f"with {check_rate:.0%} checked: ${blended.per_request_with_checks:.5f}, "
            f"{blended.saving_with_checks:.0%} less",
        ]
    )


class PlanOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `aio plan`."""

    rate: float | None = None
    """Requests per second."""
    per_day: float | None = None
    """Requests per day, instead of --rate."""
    prompt_tokens: float = 500
    """Mean tokens of a prompt."""
    output_tokens: float = 200
    """Mean tokens of an answer."""
    cached: float = 0.0
    """Share of a prompt that the prefix cache holds."""
    trace: Path | None = None
    """Take the rate and the lengths from a CSV or JSONL file of requests."""
    trace_unit: Literal["s", "ms"] = "s"
    """Unit of the trace's times."""
    peak: Annotated[float, Meta(ge=1)] = 1.0
    """Planned rate divided by the given rate."""
    replicas: Annotated[tuple[str, ...], Meta(title="PROFILE")] = msgspec.field(name="replica", default=())
    """A packaged profile or MODEL/FORMAT/[COUNTx]DEVICE. The cheapest one is chosen. [smollm2-135m-int4-cpu]"""
    usd_per_hour: Annotated[float, Meta(ge=0)] | None = None
    """Price of one replica in US dollars per hour. [an assumption by device]"""
    ttft_ms: float | None = None
    """Objective for the time to the first token in milliseconds, which --quantile of the requests meet."""
    itl_ms: float | None = None
    """Objective for the mean time between tokens in milliseconds."""
    e2e_ms: float | None = None
    """Objective for the time to the end of an answer in milliseconds, which --quantile of the requests meet."""
    quantile: float = 0.99
    """Share of the requests that must meet --ttft-ms and --e2e-ms."""
    busy: float = 1.0
    """Maximum share of a replica's highest rate to use."""
    spare: Annotated[Whole, Meta(extra={"show_default": False})] = 0
    """Number of spare replicas."""
    knobs: Literal["throughput", "latency", "tail", "cost"] | None = msgspec.field(name="profile", default=None)
    """Plan for a set of live knobs and its objectives."""
    simulate: Annotated[int, Meta(ge=100, title="REQUESTS")] | None = None
    """Simulate this many requests on one replica with the core's scheduler, and show TTFT and ITL at p50 and p99."""


@click.command()
@options_of(PlanOptions)
@json_option
def plan(options: PlanOptions, as_json: bool) -> None:
    """Calculate replicas, devices and dollars for a rate of requests and their lengths."""
    from gateway.planning.capacity.capacity import KNOB_OBJECTIVES, Objectives, cheapest, with_knobs
    from gateway.planning.capacity.replica_profile import replica_profile
    from gateway.planning.capacity.workload import Workload, per_second, read_trace, trace_workload

    rate, per_day, trace = options.rate, options.per_day, options.trace
    if sum(source is not None for source in (rate, per_day, trace)) != 1:
        raise click.UsageError("give one of --rate, --per-day and --trace")
    if trace is not None:
        load = trace_workload(read_trace(trace, options.trace_unit))
        load = msgspec.structs.replace(load, cached_share=options.cached)
    else:
        load = Workload(
            rate=rate if rate is not None else per_second(per_day or 0.0),
            prompt_tokens=options.prompt_tokens,
            output_tokens=options.output_tokens,
            cached_share=options.cached,
        )
    load = load.at(load.rate * options.peak)
    candidates = [replica_profile(name) for name in options.replicas or ("smollm2-135m-int4-cpu",)]
    if options.usd_per_hour is not None:
        candidates = [msgspec.structs.replace(each, usd_per_hour=options.usd_per_hour) for each in candidates]
    wanted = Objectives(
        ttft_s=_seconds(options.ttft_ms),
        itl_s=_seconds(options.itl_ms),
        e2e_s=_seconds(options.e2e_ms),
        quantile=options.quantile,
        most_busy=options.busy,
        spare=options.spare,
    )
    if (knobs := options.knobs) is not None:
        candidates, wanted = [with_knobs(each, knobs) for each in candidates], KNOB_OBJECTIVES[knobs]
    fleet = cheapest(candidates, load, wanted)
    simulated = None
    if options.simulate is not None:
        profile = next(each for each in candidates if each.name == fleet.profile)
        simulated = _simulated(profile, load.at(load.rate / fleet.replicas), options.simulate)
    answer, text = {"load": load, "objectives": wanted, "plan": fleet}, _text(load, wanted, fleet)
    if simulated is not None:
        answer, text = answer | {"simulation": simulated}, f"{text}\n{_simulated_text(simulated)}"
    echo_answer(as_json, answer, text)


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1e3


def _text(load: "Workload", wanted: "Objectives", fleet: "Plan") -> str:
    each = fleet.each
    return "\n".join(
        [
            f"{load.rate:,.1f} requests/s of {load.prompt_tokens:,.0f} tokens in and {load.output_tokens:,.0f} out",
            f"{fleet.replicas:,} replicas of {fleet.profile} ({fleet.devices:,} devices; step times {fleet.evidence})",
            f"each: {each.in_flight:.1f} answers at once, {each.rate:.3f} requests/s, ITL {each.itl_s * 1e3:.1f} ms, "
            f"TTFT p{wanted.quantile * 100:g} {each.ttft_s * 1e3:,.0f} ms; limited by {fleet.bound}",
            f"in flight: {fleet.in_flight:,.0f} requests",
            f"${fleet.usd_per_hour:,.2f} an hour, ${fleet.usd_per_month:,.0f} a month, "
            f"${fleet.usd_per_1k_tokens:.6f} per 1k tokens, ${fleet.usd_per_1k_output_tokens:.6f} per 1k output tokens",
        ]
    )


def _simulated(profile: "ReplicaProfile", load: "Workload", requests: int) -> "SimulatedSchedule":
    """Raises `ClickException` where the core is not installed."""
    try:
        from gateway.planning.capacity.scheduled_core import simulate_schedule
    except ModuleNotFoundError as error:
        raise click.ClickException(f"--simulate runs the core: pip install 'aio-gateway[local]' ({error})") from error
    return simulate_schedule(profile, load, requests=requests)


def _simulated_text(run: "SimulatedSchedule") -> str:
    return (
        f"simulated, not measured: {run.requests:,} requests at {run.rate:.3f}/s on one replica, each step planned "
        f"by the scheduler of the core, step times {run.evidence}\n"
        f"TTFT p50 {run.ttft_p50_s * 1e3:,.0f} ms, p99 {run.ttft_p99_s * 1e3:,.0f} ms; "
        f"ITL p50 {run.itl_p50_s * 1e3:.1f} ms, p99 {run.itl_p99_s * 1e3:.1f} ms; "
        f"{run.mean_batch:.1f} sequences in a step, {run.preemptions:,} preempted"
    )


fleet = LazyGroup(
    name="fleet",
    help="Predictive scaling of replicas.",
    commands={
        "serve": ("gateway.cli.planning.plan:serve", "Serve the target that a cluster's autoscaler reads."),
    },
)


class FleetOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `aio fleet serve`."""

    gateways: Annotated[tuple[str, ...], Meta(title="URL")] = msgspec.field(name="gateway")
    """Gateway to scrape. May be repeated."""
    tiers: Annotated[tuple[str, ...], Meta(title="N=PROFILE")] = msgspec.field(name="tier")
    """A tier's number and its profile, as for `aio plan --replica`."""
    cold_start: Annotated[float, Meta(ge=0)] | None = None
    """Seconds until a started replica serves. [the profile's]"""
    interval: Annotated[float, Meta(ge=1)] = 5.0
    """Seconds between scrapes."""
    warm: Count = 3
    """Minimum replicas of a tier."""
    most: Count = 64
    """Maximum replicas of a tier."""
    busy: float = 0.8
    """Target utilisation of a replica's best rate."""
    quantile: float = 0.9
    """Quantile of the forecast's errors to keep in reserve."""
    down_window: float = 900.0
    """Seconds of low load before scaling down."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 8090
    """Port to listen on."""


@click.command()
@options_of(FleetOptions)
def serve(options: FleetOptions) -> None:
    """Scrape gateways and serve `GET /v1/fleet` (JSON) and `GET /metrics` (Prometheus)."""
    import uvicorn

    from gateway.planning.capacity.replica_profile import replica_profile
    from gateway.planning.scaling.predictive import FleetSettings, PredictiveKnobs, ServiceObjectives
    from gateway.planning.scaling.target_server import FleetTargets, TargetService, target_app

    if any("=" not in tier for tier in options.tiers):
        raise click.UsageError("--tier takes a number and a profile, such as 1=smollm2-135m-int4-cpu")
    profiles = {number: replica_profile(name) for number, _, name in (tier.partition("=") for tier in options.tiers)}
    targets = FleetTargets(
        profiles,
        {
            number: FleetSettings(
                cold_start_s=profile.cold_start_s if options.cold_start is None else options.cold_start,
                least=options.warm,
                most=options.most,
                interval_s=options.interval,
            )
            for number, profile in profiles.items()
        },
        objectives=ServiceObjectives(),
        knobs=PredictiveKnobs(busy=options.busy, quantile=options.quantile, down_window_s=options.down_window),
    )
    app = target_app(TargetService(targets, options.gateways, options.interval))
    uvicorn.run(app, host=options.host, port=options.port, log_level="warning")
