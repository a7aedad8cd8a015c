"""`aio bench`: its commands, and `aio bench core`: the core in this process under load, one row per load."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from gateway.cli.group import LazyGroup
from gateway.cli.options import cache_dir_option, catalog_option, json_option, settings_from

if TYPE_CHECKING:
    from inference_core.bench import BenchOptions, Progress

bench = LazyGroup(
    name="bench",
    help="Measure parts of AIO on this machine.",
    commands={
        "core": ("gateway.cli.bench:core", "Throughput and latency of the inference core."),
        "quality": ("gateway.cli.bench_quality:quality", "How far quantised arithmetic strays from float32."),
        "route": ("gateway.cli.bench_route:route", "CPU and wall-clock time of a routing decision, by stage."),
        "step": ("gateway.cli.bench_step:step", "Where the time of one step of a model goes."),
        "serve": ("gateway.cli.bench_serve:serve", "Time to ready and memory of server processes."),
        "tiers": ("gateway.cli.bench_tiers:tiers", "What each tier gets right, and which are worth their price."),
    },
)


def numbers_of(kind: type[int] | type[float]) -> Callable[[click.Context, click.Parameter, str], tuple[float, ...]]:
    """A callback that reads a list such as `1 8 32`."""

    def read(context: click.Context, parameter: click.Parameter, value: str) -> tuple[float, ...]:
        try:
            return tuple(kind(part) for part in value.replace(",", " ").split())
        except ValueError:
            raise click.BadParameter(f"{value!r} is not a list of numbers") from None

    return read


class ManyNumbers(click.Command):
    """Lets `--concurrency 1 8 32` take all words up to the next option, as argparse's nargs="+" does."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Join the words after the options that take several."""
        joined: list[str] = []
        open_option = False
        for word in args:
            if word in ("--concurrency", "--rate", "--sequences"):
                open_option = True
                joined += [word, ""]
            elif open_option and not word.startswith("--"):
                joined[-1] = f"{joined[-1]} {word}".strip()
            else:
                open_option = False
                joined.append(word)
        return super().parse_args(ctx, joined)


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
    from inference_core.core_loop import ThreadCoreClient
    from inference_core.loaders.model_path import resolve_model_path
    from inference_core.loading import load_core
    from inference_core.tokenization.loading import load_tokenizer
    from tiers.catalog_file import load_catalog

    catalog = load_catalog(settings.catalog)
    paths = {spec.name: spec.path for spec in catalog.core.models}
    name = model or next(iter(paths), "")
    if name not in paths:
        raise click.ClickException(
            f"the catalogue has no model {name!r} on its core; it has {', '.join(paths) or 'none'}"
        )
    client = ThreadCoreClient(lambda: load_core(catalog.core, settings.cache_path))
    await client.start()
    try:
        tokenizer = load_tokenizer(resolve_model_path(paths[name]))
        async for row in run_bench(client, tokenizer, name, options, _progress):
            row = {"model": name, **row}
            click.echo(msgspec.json.encode(row) if as_json else row_text(row))
    finally:
        await client.close()


def _progress(now: "Progress") -> None:
    """A line that is redrawn on a terminal; elsewhere one line per load."""
    if now.done < now.total and not sys.stderr.isatty():
        return
    speed = now.output_tokens / max(now.seconds, 1e-9)
    line = f"{now.label}: {now.done}/{now.total}, {now.errors} errors, {speed:.0f} tok/s"
    click.echo(f"\r{line}" if now.done < now.total else f"\r{line}\n", err=True, nl=False)
