"""`aio cost`: what routing would save between two models, before anything is set up; and what a traffic mix of a
catalogue costs (RT-09)."""

import re
from typing import TYPE_CHECKING, Any

import click

from gateway.operations.cli.options import catalog_option, echo_answer, echo_json, json_option, settings_from, table

if TYPE_CHECKING:
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
@click.option("--requests", type=click.IntRange(min=1), default=1_000_000, show_default=True, help="With --from.")
@click.option(
    "--easy",
    type=click.FloatRange(0, 100),
    default=60,
    show_default=True,
    help="Percentage of requests that the cheap model answers well enough; with --from.",
)
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
        _text(mix, costs, compared, check_rate, found),
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
    if as_json:
        echo_json({"requests": requests, "easy": easy, "costs_usd": each, "blended": found})
        return
    now, then, checked = (
        f"${usd * requests:,.2f}" for usd in (each[1], found.per_request, found.per_request_with_checks)
    )
    price = prices[1]
    rows = [
        [f"{strong} for all {requests:,} requests", now, f"{tokens[0]} + {tokens[1]} tokens at {_dollars_of(price)}"],
        [f"{cheap} for the easy {easy:.0%}", then, f"{found.saving:.0%} less; {cheap} at {_dollars_of(prices[0])}"],
        [f"{check_rate:.0%} of those verified by {strong}", checked, f"{found.saving_with_checks:.0%} less"],
    ]
    click.echo(table(rows[0], rows[1:]))


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
