"""Options that several commands share, how they and the environment become settings, and how a command runs on the
database: opened if it has the schema of this version, and closed afterwards.
"""

import asyncio
import sys
import textwrap
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from gateway.base.configuration import SETTINGS, load_settings
from gateway.base.settings import Settings
from gateway.base.terminal import terminal_columns

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine


Command = TypeVar("Command", bound=Callable[..., Any])

# Kinds of arguments: what has to exist, then what a command may make.
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
NEW_FILE = click.Path(dir_okay=False, path_type=Path)
NEW_FOLDER = click.Path(file_okay=False, path_type=Path)


def setting_option(field: str, *names: str, **attributes: Any) -> Callable[[Command], Command]:
    """Return the option that overrides the setting `field`, with the setting's description as help."""
    setting = SETTINGS[field]
    default = f"; {setting.default}" if setting.default else ""
    help_text = f"{setting.description.replace('`', '')}.  [{setting.variable}{default}]"
    return click.option(*(names or [f"--{field.replace('_', '-')}"]), field, help=help_text, **attributes)


def gone_option(name: str, instead: str) -> Callable[[Command], Command]:
    """Return an option that a command had, and that is refused with what to do instead."""

    def refuse(_context: click.Context, _option: click.Parameter, value: str | None) -> None:
        if value is not None:
            raise click.UsageError(f"{name} is gone: {instead}")

    return click.option(name, hidden=True, expose_value=False, callback=refuse)


def by_commas(_context: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> str | None:
    """Return the values of an option that may be repeated as the setting has them; None without any."""
    return ",".join(values) or None


def by_words(kind: type[int] | type[float]) -> Callable[[click.Context, click.Parameter, str], tuple[float, ...]]:
    """Return a callback that reads a list such as `1 8 32`."""

    def read(context: click.Context, parameter: click.Parameter, value: str) -> tuple[float, ...]:
        try:
            return tuple(kind(part) for part in value.replace(",", " ").split())
        except ValueError:
            raise click.BadParameter(f"{value!r} is not a list of numbers") from None

    return read


catalog_option = setting_option("catalog", metavar="NAME|FILE")
data_dir_option = setting_option("data_dir", metavar="DIR")
cache_dir_option = setting_option("cache_dir", metavar="DIR")
database_option = setting_option("database_url", metavar="URL")
core_socket_option = setting_option("core_socket", "--socket", metavar="PATH")
log_level_option = setting_option("log_level", type=click.Choice(["debug", "info", "warning", "error"]))
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
audit_reason_option = click.option(
    "--reason", default="asked for on the command line", show_default=False, help="For the audit trail."
)


def stored_options(command: Command) -> Command:
    """Options for the database and for JSON output."""
    return data_dir_option(database_option(json_option(command)))


def ledger_options(command: Command) -> Command:
    """Options for the catalogue, the database and JSON output."""
    return catalog_option(stored_options(command))


def machine_options(command: Command) -> Command:
    """Options for a catalogue whose models run here, and JSON output."""
    return catalog_option(data_dir_option(cache_dir_option(json_option(command))))


# Columns of a table that a narrow terminal still gets.
_LEAST_COLUMN = 10
QUALITY_METAVAR = "economy|balanced|careful|0..1"


def quality_of(text: str) -> float:
    """Parse a quality target, by name or number; the `type` of an option. Raises `click.BadParameter`."""
    from classifier.complexity.quality_setting import QualitySetting, target_of

    try:
        found: float | None = target_of(msgspec.convert(text, QualitySetting, strict=False))
    except msgspec.ValidationError:
        found = None
    if found is None:
        raise click.BadParameter(f"{text!r} is neither economy, balanced or careful nor a number from 0 to 1.")
    return found


def settings_from(**options: Any) -> Settings:
    """Return the settings of the environment, overridden by the given options, with the catalogue of the data folder's
    gateway where there is no other: records have its tiers. Raises `SettingsError`."""
    return load_settings(of_data_folder=True, **options)


def echo_json(value: Any) -> None:
    """Print one JSON document, indented, on standard output."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


def echo_answer(as_json: bool, value: Any, text: str) -> None:
    """Print `value` for programs, or `text` for people."""
    if as_json:
        echo_json(value)
    else:
        click.echo(text)


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return columns padded to their widest cell; callers format numbers. On a terminal that is too narrow, the widest
    cells are broken into several lines."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    if (room := terminal_columns()) is not None:
        widths = _fitted(widths, room - 2 * (len(head) - 1))
    return "\n".join(line for row in [head, *rows] for line in _lines(row, widths))


def _fitted(widths: list[int], room: int) -> list[int]:
    """Narrow the widest columns until all fit into `room`, or none is wider than is needed to read it."""
    widths = list(widths)
    while sum(widths) > room and max(widths) > _LEAST_COLUMN:
        widths[widths.index(max(widths))] -= 1
    return widths


def _lines(row: list[str], widths: list[int]) -> list[str]:
    pairs = list(zip(row, widths, strict=True))
    cells = [textwrap.wrap(cell, width) if len(cell) > width else [cell] for cell, width in pairs]
    return [
        "  ".join(part.ljust(width) for part, width in zip(parts, widths, strict=True)).rstrip()
        for parts in zip_longest(*cells, fillvalue="")
    ]


@contextmanager
def staged_progress(label: str) -> Iterator[Callable[[str, float], None]]:
    """A progress bar on standard error, moved by calls of (stage, share done)."""
    # Only `pos`, `label` and `update` are used; click's type requires items, and there are none.
    bar: Any
    with click.progressbar(length=1000, label=label, file=sys.stderr) as bar:

        def show(stage: str, share: float) -> None:
            bar.label = stage
            bar.update(round(share * 1000) - bar.pos)

        yield show


def shown_progress() -> AbstractContextManager[Callable[[str, float], None]]:
    """`staged_progress` on a terminal; elsewhere nothing is shown."""
    return staged_progress("starting") if sys.stderr.isatty() else nullcontext(lambda stage, share: None)


Result = TypeVar("Result")


def with_database(settings: Settings, order: "Callable[[AsyncEngine], Awaitable[Result]]") -> Result:
    """Return the result of `order`. Makes a data folder and a schema where there is none; upgrades no schema, because
    an earlier server may run on it.

    Raises:
        SchemaError: the schema is that of another version.
        DatabaseAwayError: the database does not answer.
    """
    from gateway.base.stores.data_folder import private_data_folder
    from quality.store.database import database_needed, database_opened, require_schema

    async def carry_out() -> Result:
        private_data_folder(settings.data_path)
        await require_schema(settings.database)
        async with database_opened(settings.database) as engine:
            return await order(engine)

    with database_needed(settings.database):
        return asyncio.run(carry_out())
