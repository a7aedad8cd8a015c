"""`python -m benchmarks step`: one step of a model, taken apart."""

from typing import Any

import click
import msgspec

from gateway.operations.cli.options import cache_dir_option, catalog_option, json_option, settings_from
from gateway.planning.commands.bench import ManyNumbers, numbers_of


@click.command(cls=ManyNumbers)
@click.option("--model", help="Model of the catalogue.  [its first]")
@click.option(
    "--sequences",
    callback=numbers_of(int),
    metavar="N...",
    default="1 8 32",
    show_default=True,
    help="Sequences that decode one token each.",
)
@click.option("--context", default=160, show_default=True, help="Tokens before the one that is decoded.")
@click.option("--chunk", default=256, show_default=True, help="Tokens of the prompt chunk.")
@click.option("--repeats", default=15, show_default=True, help="Steps per row; medians are shown.")
@catalog_option
@cache_dir_option
@json_option
def step(model: str | None, as_json: bool, sequences: tuple[int, ...], **given: Any) -> None:
    """Milliseconds of a decode step and of a prompt chunk: linears, attention, vocabulary projection, rest."""
    from benchmarks.core.step import bench_step
    from tiers.catalog.load import load_catalog

    shape = {name: given.pop(name) for name in ("context", "chunk", "repeats")}
    settings = settings_from(**given)
    specs = {spec.name: spec for spec in load_catalog(settings.catalog).core.models}
    name = model or next(iter(specs), "")
    if name not in specs:
        raise click.ClickException(f"the catalogue has no model {name!r} on its core; it has {', '.join(specs)}")
    for row in bench_step(specs[name], settings.cache_path, sequences=sequences, **shape):
        row = {"model": name, **row}
        click.echo(msgspec.json.encode(row) if as_json else "  ".join(f"{key}={value}" for key, value in row.items()))
