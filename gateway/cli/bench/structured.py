"""`aio bench structured`: what it costs to hold streams to a JSON schema."""

import asyncio
from typing import TYPE_CHECKING, Any

import click
import msgspec

from gateway.cli.bench.rounds import figure, show_round
from gateway.cli.options import cache_dir_option, catalog_option, json_option, settings_from

if TYPE_CHECKING:
    from inference_core.bench.structured import StructuredCost, StructuredOptions


@click.command()
@click.option("--model", help="Model of the catalogue.  [its first]")
@click.option("--streams", type=click.IntRange(min=1), default=8, show_default=True, help="Answers at a time.")
@click.option("--tokens", type=click.IntRange(min=1), default=128, show_default=True, help="Tokens of each answer.")
@click.option("--prompt-words", type=click.IntRange(min=1), default=64, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=7, show_default=True, help="Of each side, in turns.")
@click.option("--seed", default=7, show_default=True)
@catalog_option
@cache_dir_option
@json_option
def structured(model: str | None, catalog: str | None, cache_dir: str | None, as_json: bool, **given: Any) -> None:
    """Tokens per second of streams that follow a schema, and of free ones, on one core in alternating rounds.

    Example: aio bench structured --streams 8
    """
    from inference_core.bench.structured import StructuredOptions

    settings = settings_from(catalog=catalog, cache_dir=cache_dir)
    cost = asyncio.run(_run(settings, model, StructuredOptions(**given)))
    click.echo(msgspec.json.encode(cost) if as_json else _text(cost))


async def _run(settings: Any, model: str | None, options: "StructuredOptions") -> "StructuredCost":
    from inference_core.bench.opening import core_target, model_of
    from inference_core.bench.structured import structured_cost
    from inference_core.loaders.model_path import resolve_model_path
    from inference_core.tokenization.load_tokenizer import load_tokenizer
    from tiers.catalog.load import load_catalog

    catalog = load_catalog(settings.catalog)
    spec = model_of(catalog.core, model)
    tokenizer = load_tokenizer(resolve_model_path(spec.path))

    async with core_target(catalog.core, spec, settings.cache_path) as target:
        return await structured_cost(target.client, tokenizer, spec.name, options, show_round)


def _text(cost: "StructuredCost") -> str:
    return "\n".join(
        [
            f"{cost.streams} streams of {cost.tokens} tokens, {cost.rounds} rounds of each: median (range)",
            f"free        {figure(cost.free_tokens_per_second, 0)} tok/s, {cost.free_steps:.2f} steps per token",
            f"structured  {figure(cost.structured_tokens_per_second, 0)} tok/s, "
            f"{cost.structured_steps:.2f} steps per token",
            f"structured / free  {figure(cost.ratio, 3)}",
            f"a mask takes {cost.mask_microseconds:.0f} microseconds, beside the model",
        ]
    )
