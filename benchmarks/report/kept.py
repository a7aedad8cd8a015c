"""What the benchmarks share whose measurement may be kept in a file and go on: their options, and their answer."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from gateway.cli.options import NEW_FILE, Command, echo_answer, json_option, setting_options, settings_from

keep_option = click.option("--keep", is_flag=True, help="Leave a finished measurement in --out as it is.")
out_option = click.option(
    "--out", type=NEW_FILE, help="Keep the measurement here as JSON lines; one that was cut short goes on."
)

Options = TypeVar("Options")
Results = TypeVar("Results")
# Measures: settings, name of the model, options of the benchmark, --out, --keep.
Measure = Callable[[Any, str | None, Options, Path | None, bool], Coroutine[Any, Any, Results]]


def echo_row(row: Mapping[str, Any], as_json: bool) -> None:
    """Print one row of a measurement as it comes: a line of JSON, or names with their values."""
    parts = (value if isinstance(value, Mapping) else {name: value} for name, value in row.items())
    cells = {name: value for part in parts for name, value in part.items()}
    shown = (f"{name}={round(value, 3) if isinstance(value, float) else value}" for name, value in cells.items())
    click.echo(msgspec.json.encode(row) if as_json else "  ".join(shown))


def require_at_least_one(options: object, *names: str) -> None:
    """Raises `ValueError` for a field of `options` that is below 1; None is no number."""
    for name in names:
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")


def kept_options(command: Command) -> Command:
    """`--out`, `--keep`, the catalogue and `--json`: all `show_measurement` takes besides a benchmark's own options."""
    for option in (json_option, setting_options("cache_dir", "catalog"), keep_option, out_option):
        command = option(command)
    return command


def show_measurement(
    arguments: dict[str, Any],
    options_of: Callable[..., Options],
    measure: Measure[Options, Results],
    table: Callable[[Results], str],
) -> None:
    """Measure under what the command line gave, and print the rows as a table or as JSON.

    Raises UsageError for options that `options_of` refuses.
    """
    model, out, keep, as_json = (arguments.pop(name) for name in ("model", "out", "keep", "as_json"))
    settings = settings_from(catalog=arguments.pop("catalog"), cache_dir=arguments.pop("cache_dir"))
    try:
        options = options_of(**arguments)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    results = asyncio.run(measure(settings, model, options, out, keep))
    echo_answer(as_json, results, table(results))
