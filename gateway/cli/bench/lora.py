"""`aio bench lora`: what it costs when every stream goes through an adapter of its own."""

import asyncio
from typing import TYPE_CHECKING, Any

import click
import msgspec

from gateway.cli.bench.rounds import figure, show_round
from gateway.cli.options import cache_dir_option, catalog_option, json_option, settings_from

if TYPE_CHECKING:
    from inference_core.bench.lora import LoraCost, LoraOptions


@click.command()
@click.option("--model", help="Model of the catalogue.  [its first]")
@click.option("--streams", type=click.IntRange(min=1), default=8, show_default=True, help="Answers at a time.")
@click.option("--adapters", type=click.IntRange(1, 1024), default=8, show_default=True, help="Different ones in turn.")
@click.option("--rank", type=click.IntRange(1, 512), default=8, show_default=True, help="Of every linear layer.")
@click.option("--tokens", type=click.IntRange(min=1), default=128, show_default=True, help="Tokens of each answer.")
@click.option("--prompt-words", type=click.IntRange(min=1), default=64, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=7, show_default=True, help="Of each side, in turns.")
@click.option("--seed", default=7, show_default=True)
@catalog_option
@cache_dir_option
@json_option
def lora(model: str | None, catalog: str | None, cache_dir: str | None, as_json: bool, **given: Any) -> None:
    """Tokens per second of streams with random adapters, and of the model alone, on one core in alternating rounds.

    Example: aio bench lora --streams 8 --adapters 8 --rank 8
    """
    from inference_core.bench.lora import LoraOptions

    settings = settings_from(catalog=catalog, cache_dir=cache_dir)
    cost = asyncio.run(_run(settings, model, LoraOptions(**given)))
    click.echo(msgspec.json.encode(cost) if as_json else _text(cost))


async def _run(settings: Any, model: str | None, options: "LoraOptions") -> "LoraCost":
    import tempfile
    from pathlib import Path

    from inference_core.bench.lora import lora_cost
    from inference_core.bench.opening import core_target, model_of
    from inference_core.loaders.model_path import resolve_model_path
    from inference_core.loaders.open_checkpoint import open_checkpoint
    from inference_core.tokenization.load_tokenizer import load_tokenizer
    from tiers.catalog.load import load_catalog

    catalog = load_catalog(settings.catalog)
    # All adapters of the measurement lie ready: what is measured is computing with them, not bringing them in.
    spec = msgspec.structs.replace(model_of(catalog.core, model), max_adapters=options.adapters, adapters={})
    path = resolve_model_path(spec.path)
    config = open_checkpoint(path, settings.cache_path).config

    with tempfile.TemporaryDirectory() as folder:
        async with core_target(catalog.core, spec, settings.cache_path) as target:
            return await lora_cost(
                target.client, load_tokenizer(path), spec.name, config, Path(folder), options, show_round
            )


def _text(cost: "LoraCost") -> str:
    return "\n".join(
        [
            f"{cost.streams} streams of {cost.tokens} tokens, {cost.adapters} adapters of rank {cost.rank} "
            f"({cost.adapter_bytes / 2**20:.1f} MiB each), {cost.rounds} rounds of each: median (range)",
            f"model alone    {figure(cost.plain_tokens_per_second, 0)} tok/s",
            f"with adapters  {figure(cost.adapted_tokens_per_second, 0)} tok/s",
            f"with / alone   {figure(cost.ratio, 3)}",
        ]
    )
