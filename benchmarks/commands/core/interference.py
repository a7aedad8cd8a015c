"""`python -m benchmarks interference`: what a long prompt, a busy batch and a shared prefix do to latency."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.commands.kept import kept_options, show_measurement
from gateway.planning.commands.bench import ManyNumbers, numbers_of

if TYPE_CHECKING:
    from benchmarks.core.interference import InterferenceOptions, InterferenceResults


@click.command(cls=ManyNumbers)
@click.option("--model", help="Model of the catalogue.  [its first]")
@click.option("--rounds", default=5, show_default=True)
@click.option("--streams", default=8, show_default=True, help="Decoding while the long prompt arrives.")
@click.option("--long-words", default=8000, show_default=True, help="Words of the long prompt, about one token each.")
@click.option("--quiet-tokens", default=100, show_default=True, help="Tokens of each stream before it arrives.")
@click.option("--prompt-tokens", default=128, show_default=True, help="Words of the other prompts.")
@click.option(
    "--levels",
    callback=numbers_of(int),
    metavar="N...",
    default="0 1 2 4 8 16 32",
    show_default=True,
    help="Streams decoding when a prompt joins.",
)
@click.option("--probes", default=8, show_default=True, help="Prompts that join at each level.")
@click.option("--prefix-words", default=1024, show_default=True, help="Words of the prompts that share a prefix.")
@click.option("--shared-percent", default=90, show_default=True, help="How much of them they share.")
@click.option("--pairs", default=4, show_default=True, help="Prompts with and without a cached prefix.")
@click.option("--seed", default=7, show_default=True)
@kept_options
def interference(**given: Any) -> None:
    """ITL of streams during a long prefill, TTFT of joining a busy batch, TTFT with a cached prefix.

    Example: python -m benchmarks interference --rounds 5 --out interference.jsonl
    """
    from benchmarks.core.interference import InterferenceOptions
    from benchmarks.report.tables import interference_tables

    show_measurement(given, InterferenceOptions, _run, interference_tables)


async def _run(
    settings: Any, model: str | None, options: "InterferenceOptions", out: Path | None, keep: bool
) -> "InterferenceResults":
    from benchmarks.core.core_memory import roomy
    from benchmarks.core.interference import interfere
    from benchmarks.report.measurement import Measurement
    from gateway.planning.load_test.open_core import core_target, model_of
    from tiers.catalog.load import load_catalog

    catalog = load_catalog(settings.catalog)
    spec = model_of(catalog.core, model)
    most = max(*options.levels, options.streams) + 1
    core, knobs = roomy(catalog.core, spec, settings.cache_path, sequences=most, tokens_each=2 * options.prompt_tokens)
    extra, _ = roomy(catalog.core, spec, settings.cache_path, sequences=options.streams, tokens_each=options.long_words)
    core = max(core, extra, key=lambda each: each.arena_bytes)
    measurement = Measurement.begin("interference", {"model": spec, "knobs": knobs, "options": options}, out, keep=keep)
    async with core_target(core, spec, settings.cache_path, knobs) as target:
        return await interfere(target, options, measurement, lambda line: click.echo(line, err=True))
