"""Options that several commands share, and how they and the environment become settings."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import click
import msgspec

from gateway.base.configuration.load import SETTINGS, load_settings
from gateway.base.settings import Settings

Command = TypeVar("Command", bound=Callable[..., Any])


def setting_option(field: str, *names: str, **attributes: Any) -> Callable[[Command], Command]:
    """Return the option that overrides the setting `field`, with the setting's description as help."""
    setting = SETTINGS[field]
    default = f"; {setting.default}" if setting.default else ""
    help_text = f"{setting.description.replace('`', '')}.  [{setting.variable}{default}]"
    return click.option(*(names or [f"--{field.replace('_', '-')}"]), field, help=help_text, **attributes)


catalog_option = setting_option("catalog", metavar="NAME|FILE")
data_dir_option = setting_option("data_dir", metavar="DIR")
cache_dir_option = setting_option("cache_dir", metavar="DIR")
database_option = setting_option("database_url", metavar="URL")
core_socket_option = setting_option("core_socket", "--socket", metavar="PATH")
log_level_option = setting_option("log_level", type=click.Choice(["debug", "info", "warning", "error"]))
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


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
    """Return the settings of the environment, overridden by the given options. Raises `SettingsError`."""
    return load_settings(**options)


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
    """Return columns padded to their widest cell; callers format numbers."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [head, *rows]]
    return "\n".join(line.rstrip() for line in lines)


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
