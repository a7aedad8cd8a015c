"""Options that several commands share, how they and the environment become settings, and how a command runs on the
database: opened if it has the schema of this version, and closed afterwards.
"""

import asyncio
import functools
import sys
import textwrap
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

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


QUALITY_METAVAR = "economy|balanced|careful|0..1"
_METAVARS = {
    "cache_dir": "DIR",
    "catalog": "NAME|FILE",
    "cluster": "ADDRESS",
    "core_socket": "PATH",
    "data_dir": "DIR",
    "database_url": "URL",
    "gateway_workers": "N",
    "keys_file": "FILE",
    "quality_target": QUALITY_METAVAR,
}
_NAMES = {"core_socket": "--socket"}
_SETTING_TYPES = get_type_hints(Settings)


def setting_option(field: str, **attributes: Any) -> Callable[[Command], Command]:
    """Return the option that overrides the setting `field`, with the setting's type and its description as help."""
    setting, kind = SETTINGS[field], _SETTING_TYPES[field]
    default = f"; {setting.default}" if setting.default else ""
    help_text = f"{setting.description.replace('`', '')}.  [{setting.variable}{default}]"
    usual: dict[str, Any] = {"help": help_text, "metavar": _METAVARS.get(field)}
    if kind is bool:
        usual |= {"is_flag": True, "default": None}
    elif get_origin(kind) is Literal:
        usual["type"] = click.Choice(list(get_args(kind)))
    elif kind in (int, float):
        usual["type"] = kind
    return click.option(_NAMES.get(field, f"--{field.replace('_', '-')}"), field, **usual | attributes)


def setting_options(*fields: str) -> Callable[[Command], Command]:
    """Give a command an option for each of these settings."""

    def decorate(command: Command) -> Command:
        for field in reversed(fields):
            command = setting_option(field)(command)
        return command

    return decorate


def with_settings(*fields: str, **fixed: Any) -> Callable[[Command], Command]:
    """Give a command an option for each of these settings, and, as its argument `settings`, what the environment, the
    options and `fixed` make of them (`settings_from`)."""

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def completed(*arguments: Any, **options: Any) -> Any:
            overrides = {field: options.pop(field) for field in fields}
            return command(*arguments, settings=settings_from(**overrides, **fixed), **options)

        return setting_options(*fields)(completed)  # type: ignore[return-value]

    return decorate


STORED = ("data_dir", "database_url")
LEDGER = ("catalog", *STORED)
MACHINE = ("catalog", "data_dir", "cache_dir")


def gone_option(name: str, instead: str) -> Callable[[Command], Command]:
    """Return an option that a command had, with a value or without, and that is refused with what to do instead."""

    def refuse(_context: click.Context, _option: click.Parameter, value: str | None) -> None:
        if value is not None:
            raise click.UsageError(f"{name} is gone: {instead}")

    return click.option(name, hidden=True, expose_value=False, is_flag=False, flag_value="", callback=refuse)


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


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
reason_option = click.option("--reason", help="Why the change is made. The audit trail keeps it.")
audit_reason_option = click.option(
    "--reason",
    default="asked for on the command line",
    show_default=False,
    help="Why the change is made. The audit trail keeps it.",
)


def limit_option(rows: int) -> Callable[[Command], Command]:
    """Return the option for how many rows a list shows."""
    return click.option("--limit", type=click.IntRange(1, 1000), default=rows, help="Number of rows, newest first.")


# Columns of a table that a narrow terminal still gets.
_LEAST_COLUMN = 10


def quality_of(text: str) -> float:
    """Parse a quality target, by name or number; the `type` of an option. Raises `click.BadParameter`."""
    from classifier.complexity.quality_setting import QualitySetting, target_of

    try:
        target: float | None = target_of(msgspec.convert(text, QualitySetting, strict=False))
    except msgspec.ValidationError:
        target = None
    if target is None:
        raise click.BadParameter(f"{text!r} is neither economy, balanced or careful nor a number from 0 to 1.")
    return target


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
