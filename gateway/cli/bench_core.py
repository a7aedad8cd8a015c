"""`aio bench core`: the core in this process under load, one row per load."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from gateway.cli.bench import ManyNumbers, numbers_of, show_progress
from gateway.cli.options import cache_dir_option, catalog_option, json_option, settings_from

if TYPE_CHECKING:
    from inference_core.bench import BenchOptions


@click.command(cls=ManyNumbers)
@click.option("--model", help="Model of the catalogue.  [its first]")
@click.option(
    "--concurrency",
    callback=numbers_of(int),
    metavar="N...",
    default="1 8 32",
    show_default=True,
    help="Closed loop: in flight.",
)
@click.option(
    "--rate", callback=numbers_of(float), metavar="R...", default="", help="Open loop: Poisson arrivals per second."
)
@click.option(
    "--trace", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Replay a CSV or JSONL file."
)
@click.option("--prompt-tokens", default=128, show_default=True, help="Words per prompt, about one token each.")
@click.option("--output-tokens", default=64, show_default=True)
@click.option("--shared-prefix", default=0, show_default=True, help="Words in front of every prompt, all the same.")
@click.option("--rounds", default=3, show_default=True, help="Closed loop: requests per unit of concurrency.")
@click.option("--requests", default=0, show_default=True, help="Requests per row: at least, at most for a trace.")
@click.option("--duration", default=30.0, show_default=True, help="Seconds of arrivals at a rate.")
@click.option("--trace-speed", default=1.0, show_default=True, help="2 replays twice as fast.")
@click.option("--trace-unit", type=click.Choice(["s", "ms"]), default="s", show_default=True)
@click.option("--max-prompt", default=0, show_default=True, help="Clip the prompts of a trace.")
@click.option("--seed", default=7, show_default=True)
@click.option("--warmup", default=2, show_default=True, help="Requests before the first row.")
@click.option("--timeout", default=300.0, show_default=True, help="Seconds for one request.")
@click.option("--slo-ttft-ms", type=float, help="Objective for the first token; adds goodput columns.")
@click.option("--slo-itl-ms", type=float, help="Objective for the mean time per later token.")
@catalog_option
@cache_dir_option
@json_option
def core(model: str | None, catalog: str | None, cache_dir: str | None, as_json: bool, **given: Any) -> None:
    """Measure the core without HTTP; the rows have the columns of the load generator for servers.

    Example: aio bench core --concurrency 1 8 32 --prompt-tokens 128 --output-tokens 64 --json
    """
    from inference_core.bench import BenchOptions

    try:
        options = BenchOptions(**given)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    asyncio.run(_run(settings_from(catalog=catalog, cache_dir=cache_dir), model, options, as_json))


async def _run(settings: Any, model: str | None, options: "BenchOptions", as_json: bool) -> None:
    from inference_core.bench import row_text, run_bench
    from inference_core.bench.opening import core_target, model_of
    from tiers.catalog_file import load_catalog

    catalog = load_catalog(settings.catalog)
    spec = model_of(catalog.core, model)
    async with core_target(catalog.core, spec, settings.cache_path) as target:
        async for row in run_bench(target, options, show_progress):
            row = {"model": spec.name, **row}
            click.echo(msgspec.json.encode(row) if as_json else row_text(row))
