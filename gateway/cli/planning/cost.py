"""`aio cost`: what a traffic mix costs per request, and what it saves, calculated before any traffic (RT-09)."""

from typing import TYPE_CHECKING, Any

import click

from gateway.cli.options import catalog_option, echo_json, json_option, settings_from, table

if TYPE_CHECKING:
    from tiers.catalog.pricing import BlendedCost


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


@click.command()
@click.option(
    "--mix",
    callback=percent_shares,
    default="60/20/15/5",
    show_default=True,
    help="Percentages of the requests by tier.",
)
@click.option(
    "--costs", callback=_dollars, metavar="USD,…", help="Dollars per request by tier.  [the catalogue's, from tokens]"
)
@click.option("--prompt-tokens", type=click.IntRange(min=0), help="Tokens of a prompt.  [the catalogue's reference]")
@click.option(
    "--answer-tokens", type=click.IntRange(min=0), help="Tokens of an answer.  [the catalogue's estimate by tier]"
)
@click.option("--baseline", type=click.IntRange(min=1), help="The tier to compare with.  [3, a 70B's]")
@click.option(
    "--check-rate",
    type=click.FloatRange(0, 1),
    default=0.05,
    show_default=True,
    help="Share of answers that is checked.",
)
@click.option(
    "--checked", default="1,2", show_default=True, metavar="TIER,…", help="Tier whose answers the last tier checks."
)
@catalog_option
@json_option
def cost(
    mix: tuple[float, ...],
    costs: tuple[float, ...] | None,
    prompt_tokens: int | None,
    answer_tokens: int | None,
    baseline: int | None,
    check_rate: float,
    checked: str,
    as_json: bool,
    **given: Any,
) -> None:
    """Calculate the cost per request of a traffic mix and its saving, without and with the cost of checking answers."""
    from tiers.catalog.load import load_catalog
    from tiers.catalog.pricing import blended_cost, predicted_costs, request_cost_usd

    if costs is None:
        catalog = load_catalog(settings_from(**given).catalog)
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
    if as_json:
        echo_json({"mix": mix, "costs_usd": costs, "baseline_tier": compared, "blended": found})
    else:
        click.echo(_text(mix, costs, compared, check_rate, found))


def _text(
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
