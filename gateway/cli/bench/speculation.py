"""`aio bench speculation`: what drafts are worth, on text that copies and on open chat."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.cli.bench import ManyNumbers, numbers_of
from gateway.cli.bench.kept import kept_options, show_measurement

if TYPE_CHECKING:
    from inference_core.bench.speculation import SpeculationOptions, SpeculationResults


@click.command(cls=ManyNumbers)
@click.option("--model", help="Model of the catalogue.  [its first, or the first with a draft]")
@click.option("--way", type=click.Choice(["prompt_lookup", "draft_model"]), default="prompt_lookup", show_default=True)
@click.option("--rounds", default=5, show_default=True, help="Pairs of each workload and level.")
@click.option(
    "--levels", callback=numbers_of(int), metavar="N...", default="1 8 32", show_default=True, help="In flight."
)
@click.option("--requests", default=8, show_default=True, help="Requests of a level at least.")
@click.option("--output-tokens", default=96, show_default=True, help="Of an answer, at most.")
@click.option("--seed", default=7, show_default=True)
@kept_options
def speculation(**given: Any) -> None:
    """The same requests without and with drafts, in turn, on text to be copied and on open chat.

    Example: aio bench speculation --way draft_model --levels 1 --rounds 7
    """
    from inference_core.bench.speculation import SpeculationOptions
    from inference_core.bench.tables import speculation_table

    show_measurement(given, SpeculationOptions, _run, speculation_table)


async def _run(
    settings: Any, model: str | None, options: "SpeculationOptions", out: Path | None, keep: bool
) -> "SpeculationResults":
    from inference_core.bench.measurement import Measurement
    from inference_core.bench.opening import core_target, model_of
    from inference_core.bench.speculation import speculate
    from inference_core.loaders.model_path import resolve_model_path
    from inference_core.tokenization.load_tokenizer import load_tokenizer
    from tiers.catalog.load import load_catalog

    core = load_catalog(settings.catalog).core
    drafted = (spec.name for spec in core.models if spec.draft is not None)
    spec = model_of(core, model or (next(drafted, None) if options.way == "draft_model" else None))
    draft = model_of(core, spec.draft) if options.way == "draft_model" and spec.draft is not None else None
    measured = {"model": spec, "draft": draft, "threads": core.threads, "options": options}
    measurement = Measurement.begin("speculation", measured, out, keep=keep)
    tokenizer = load_tokenizer(resolve_model_path(spec.path))
    async with core_target(core, spec, settings.cache_path, draft=draft) as target:
        return await speculate(
            target.client, tokenizer, spec.name, options, measurement, lambda line: click.echo(line, err=True)
        )
