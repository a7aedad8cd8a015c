"""A workload of a given mix: prompts that routing sends to the tiers in the shares that were asked for (RT-10)."""

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from gateway.cli.options import FILE, FOLDER, NEW_FILE, setting_options, settings_from
from gateway.cli.planning.plan import percent_shares
from gateway.inference.router import RoutingService
from gateway.planning.backtests.backtest import dry_request, dry_routing
from tiers.conversation import Turn


class MixError(ValueError):
    """The mix cannot be made of these prompts; the message says what is missing."""


class MixedPrompt(msgspec.Struct, frozen=True):
    """One prompt and the tier that it goes to, in the form of a back-test's log."""

    id: str
    messages: list[dict[str, str]]
    tier: int


def counts_of(mix: Sequence[float], total: int) -> list[int]:
    """How many of `total` each share is, by largest remainders: each within one of its share.

    Raises `MixError` unless the shares are non-negative and sum to 1.
    """
    if min(mix) < 0 or abs(sum(mix) - 1) > 1e-6:
        raise MixError(f"the mix {list(mix)} must be shares that sum to 1")
    counts = [int(share * total) for share in mix]
    by_remainder = sorted(range(len(mix)), key=lambda k: counts[k] - mix[k] * total)
    for k in by_remainder[: total - sum(counts)]:
        counts[k] += 1
    return counts


def mixed_workload(
    routing: RoutingService, prompts: Iterable[str], mix: Sequence[float], total: int, seed: int = 0
) -> list[MixedPrompt]:
    """`total` prompts, each once, in an order that `seed` draws; every prompt is decided as a request for `auto` is.

    Raises `MixError` if a tier gets too few of `prompts`: another quality target moves them.
    """
    if len(mix) != routing.served.strongest:
        raise MixError(f"the mix has {len(mix)} shares and the catalogue {routing.served.strongest} tiers")
    wanted = counts_of(mix, total)
    by_tier: list[list[MixedPrompt]] = [[] for _ in wanted]
    distinct = list(dict.fromkeys(prompts))
    random.Random(seed).shuffle(distinct)
    for number, prompt in enumerate(distinct):
        tier = routing.route(dry_request([Turn.of("user", prompt)])).tier
        if len(by_tier[tier - 1]) < wanted[tier - 1]:
            turn = {"role": "user", "content": prompt}
            by_tier[tier - 1].append(MixedPrompt(f"mix-{number}", [turn], tier))
        if all(len(got) == want for got, want in zip(by_tier, wanted, strict=True)):
            break
    for tier, (got, want) in enumerate(zip(by_tier, wanted, strict=True), start=1):
        if len(got) < want:
            raise MixError(
                f"of {len(distinct)} prompts only {len(got)} go to tier {tier} and {want} are wanted; ask for fewer "
                "rows or another quality target"
            )
    made = [prompt for got in by_tier for prompt in got]
    random.Random(seed).shuffle(made)
    return made


@click.command()
@click.argument("output", type=NEW_FILE)
@click.option("--mix", callback=percent_shares, default="60/20/15/5", help="Percent of the prompts by tier.")
@click.option("--rows", type=click.IntRange(min=1), default=1000, help="Prompts.")
@click.option("--quality-target", type=float, help="Of the routing that decides, 0 to 1.  [AIO_QUALITY_TARGET]")
@click.option("--prompts", type=FILE, help="A log to draw from.")
@click.option("--data", type=FOLDER, help="Public data.  [AIO_DATA]")
@click.option("--seed", default=0)
@setting_options("catalog", "data_dir")
def mix(
    output: Path,
    mix: tuple[float, ...],
    rows: int,
    prompts: Path | None,
    data: Path | None,
    seed: int,
    **arguments: Any,
) -> None:
    """Write prompts, a line of JSON each, that the gateway's routing sends to its tiers in the shares of --mix.

    They come from the public outcomes, or from a log as `aio backtest` reads it.
    """

    from classifier.training.data.dataset import data_folder, load_outcomes
    from gateway.planning.backtests.log import read_log
    from inference_core.io.files import atomic_file

    if prompts is not None:
        texts = [row.turns[-1].text for row in read_log(prompts)]
    else:
        texts = [row.prompt for row in load_outcomes(data or data_folder())]
    try:
        made = mixed_workload(dry_routing(settings_from(**arguments)), texts, mix, rows, seed)
    except MixError as error:
        raise click.ClickException(str(error)) from error
    with atomic_file(output) as file:
        for prompt in made:
            file.write(msgspec.json.encode(prompt) + b"\n")
    by_tier = ", ".join(f"tier {k} {sum(prompt.tier == k for prompt in made)}" for k in range(1, len(mix) + 1))
    click.echo(f"{len(made)} prompts ({by_tier}) -> {output}")
