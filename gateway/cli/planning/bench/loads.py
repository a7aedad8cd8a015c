"""`aio bench core`: the core in this process under load, one row per load; `aio bench serve`: a server over HTTP, with
the same columns; `aio bench device`: what the catalogue's cards do, kept next to the catalogue.
"""

import asyncio
import json
from typing import Annotated, Any

import click
import msgspec
from msgspec import Meta

from gateway.base.settings import Settings
from gateway.cli.options import MACHINE, gone_option, json_option, with_settings
from gateway.cli.planning.bench import ManyNumbers, show_progress
from gateway.cli.typed_options import options_of
from gateway.planning.load_test import BenchOptions
from gateway.runtime.cores.knob_profiles import PROFILES


class CoreOptions(BenchOptions, frozen=True, kw_only=True):
    """Options of `aio bench core`."""

    model: str | None = None
    """Model of the catalogue. [its first]"""
    changes: Annotated[tuple[str, ...], Meta(title="KNOB=VALUE")] = msgspec.field(name="set", default=())
    """A live knob with its value as JSON. May be repeated."""
    profile: Annotated[str, Meta(extra={"type": click.Choice(list(PROFILES))})] | None = None
    """A set of live knobs. --set has precedence."""


@click.command(cls=ManyNumbers)
@options_of(CoreOptions)
@with_settings("catalog", "cache_dir")
@json_option
def core(options: CoreOptions, settings: Settings, as_json: bool) -> None:
    """Measure the core without HTTP. The rows have the same columns as those of `aio bench serve`.

    Example: aio bench core --concurrency 1 8 32 --prompt-tokens 128 --output-tokens 64 --json
    """
    asyncio.run(_run(settings, _knob_changes(options.changes), options, as_json))


def _knob_changes(texts: tuple[str, ...]) -> dict[str, Any]:
    try:
        return {name: json.loads(value) for name, _, value in (text.partition("=") for text in texts)}
    except ValueError as error:
        raise click.UsageError(f"--set takes KNOB=VALUE with a value in JSON: {error}") from error


async def _run(settings: Settings, changes: dict[str, Any], options: CoreOptions, as_json: bool) -> None:
    from gateway.planning.load_test import row_text, run_bench
    from gateway.planning.load_test.run import core_target, model_of
    from inference_core.engine.live_knobs import changed_knobs, start_knobs
    from tiers.catalog.core_spec import core_spec
    from tiers.catalog.load import load_catalog

    # As it is served: tuned to the tiers' objectives.
    served = core_spec(load_catalog(settings.catalog))
    spec, profile = model_of(served, options.model), options.profile
    start = start_knobs(served)[spec.name]
    named = {} if profile is None else PROFILES[profile].core_changes(start)
    knobs = changed_knobs(start, named | changes, start)
    async with core_target(served, spec, settings.cache_path, knobs) as target:
        async for row in run_bench(target, options, show_progress):
            row = {"model": spec.name, **({} if profile is None else {"profile": profile}), **row}
            click.echo(msgspec.json.encode(row) if as_json else row_text(row))


@click.command()
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    help="Seconds to measure, in addition to the time to load the models.",
)
@with_settings(*MACHINE)
@json_option
def device(seconds: float, as_json: bool, settings: Settings) -> None:
    """Measure a catalogue's GPU groups: memory bandwidth, prompts, generated tokens, gain of captured steps.

    The figures go to a file next to the catalogue, with notes on what is below half of the cards' roofline.

    The cards must be free: stop `aio serve` first.
    """
    from gateway.runtime.core_factory import fetch_core_models
    from gateway.runtime.cores.next_core import require_machine
    from gateway.runtime.device_report import report_path
    from tiers.catalog.load import load_catalog

    catalog = load_catalog(settings.catalog)
    names = [group.name for group in catalog.served_groups]
    if not names:
        raise click.ClickException(
            f"catalogue '{catalog.name}' has no GPU group that a tier uses; `aio init` proposes some for the cards here"
        )
    fetch_core_models(catalog, names)
    for name in names:
        # One by one: several groups of several cards are measured after each other.
        asyncio.run(require_machine(catalog, settings, [name]))
    from gateway.planning.load_test.measured_groups import measure_groups, report_bytes, report_text
    from inference_core.io.files import atomic_file

    report = measure_groups(catalog, settings.cache_path, seconds, lambda text: click.echo(text, err=True))
    path = report_path(settings)
    with atomic_file(path) as file:
        file.write(report_bytes(report))
    click.echo(report_bytes(report).decode() if as_json else report_text(report))
    click.echo(f"wrote {path}", err=True)


class ServeOptions(BenchOptions, frozen=True, kw_only=True):
    """Options of `aio bench serve`."""

    model: str = "tier-1"
    """Model that requests ask for."""
    url: Annotated[str, Meta(extra={"envvar": "AIO_URL"})] = "http://127.0.0.1:8080"
    """Where the server listens, by plain HTTP. [AIO_URL]"""
    key: Annotated[str, Meta(extra={"envvar": "AIO_API_KEY"})] | None = None
    """An API key of the server. [AIO_API_KEY]"""


@click.command(cls=ManyNumbers)
@gone_option("--catalog", "start `aio serve` with the catalogue, and measure it by --url")
@gone_option("--cache-dir", "start `aio serve` with the folder, and measure it by --url")
@options_of(ServeOptions)
@json_option
def serve(options: ServeOptions, as_json: bool) -> None:
    """Measure streamed completions of a running server over HTTP, from a process of this machine.

    Example: aio bench serve --concurrency 1 8 32 --json
    """
    asyncio.run(_run_over_http(options, as_json))


async def _run_over_http(options: ServeOptions, as_json: bool) -> None:
    from gateway.planning.load_test import row_text, run_bench
    from gateway.planning.load_test.http_target import HttpTarget

    target = HttpTarget(options.url, options.model, options.key)
    async for row in run_bench(target, options, show_progress):
        row = {"model": options.model, **row}
        click.echo(msgspec.json.encode(row) if as_json else row_text(row))
    await target.close()
