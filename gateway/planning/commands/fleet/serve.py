"""`aio fleet serve`: the target replicas of each tier, for a cluster's autoscaler to read."""

import click


@click.command()
@click.option(
    "--gateway", "gateways", multiple=True, required=True, metavar="URL", help="Gateway to scrape; may be repeated."
)
@click.option("--tier", "tiers", multiple=True, required=True, metavar="N=PROFILE", help="As for `aio plan --replica`.")
@click.option("--cold-start", type=click.FloatRange(min=0), help="Start-up seconds of a replica.  [the profile's]")
@click.option(
    "--interval", type=click.FloatRange(min=1), default=5.0, show_default=True, help="Seconds between scrapes."
)
@click.option("--warm", type=click.IntRange(min=1), default=3, show_default=True, help="Minimum replicas of a tier.")
@click.option("--most", type=click.IntRange(min=1), default=64, show_default=True, help="Maximum replicas of a tier.")
@click.option("--busy", type=float, default=0.8, show_default=True, help="Target utilisation of a replica's best rate.")
@click.option(
    "--quantile",
    type=float,
    default=0.9,
    show_default=True,
    help="Quantile of the forecast's errors to keep in reserve.",
)
@click.option("--down-window", type=float, default=900.0, show_default=True, help="Seconds before scaling down.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=int, default=8090, show_default=True)
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
    from gateway.planning.scaling.predictive import PredictiveKnobs
    from gateway.planning.scaling.scaling import FleetSettings, ServiceObjectives
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
