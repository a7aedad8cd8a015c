"""What the benchmarks share whose measurement may be kept in a file and go on: their options, and their answer."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click

from gateway.operations.cli.options import (
    NEW_FILE,
    Command,
    cache_dir_option,
    catalog_option,
    echo_answer,
    json_option,
    settings_from,
)

keep_option = click.option("--keep", is_flag=True, help="Leave a finished measurement in --out as it is.")
out_option = click.option(
    "--out", type=NEW_FILE, help="Keep the measurement here as JSON lines; one that was cut short goes on."
)

Options = TypeVar("Options")
Results = TypeVar("Results")
# Measures: settings, name of the model, options of the benchmark, --out, --keep.
Measure = Callable[[Any, str | None, Options, Path | None, bool], Coroutine[Any, Any, Results]]


def kept_options(command: Command) -> Command:
    """`--out`, `--keep`, the catalogue and `--json`: all `show_measurement` takes besides a benchmark's own options."""
    for option in (json_option, cache_dir_option, catalog_option, keep_option, out_option):
        command = option(command)
    return command


def show_measurement(
    given: dict[str, Any],
    options_of: Callable[..., Options],
    measure: Measure[Options, Results],
    table: Callable[[Results], str],
) -> None:
    """Measure under what the command line gave, and print the rows as a table or as JSON.

    Raises UsageError for options that `options_of` refuses.
    """
    model, out, keep, as_json = (given.pop(name) for name in ("model", "out", "keep", "as_json"))
    settings = settings_from(catalog=given.pop("catalog"), cache_dir=given.pop("cache_dir"))
    try:
        options = options_of(**given)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    results = asyncio.run(measure(settings, model, options, out, keep))
    echo_answer(as_json, results, table(results))
