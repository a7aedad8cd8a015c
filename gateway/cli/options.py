"""Options that several commands share, and how they and the environment become settings."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

if TYPE_CHECKING:
    from gateway.settings import Settings

Command = TypeVar("Command", bound=Callable[..., Any])

catalog_option = click.option(
    "--catalog", metavar="NAME|FILE", help="Catalogue: laptop, datacenter or a TOML file.  [AIO_CATALOG; laptop]"
)
data_dir_option = click.option(
    "--data-dir", metavar="DIR", help="State: database, journal, classifiers.  [AIO_DATA_DIR; ~/.local/share/aio]"
)
cache_dir_option = click.option(
    "--cache-dir", metavar="DIR", help="Repacked weights; safe to delete.  [AIO_CACHE_DIR; ~/.cache/aio]"
)
database_option = click.option(
    "--database-url", metavar="URL", help="SQLAlchemy URL.  [AIO_DATABASE_URL; SQLite in the data folder]"
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


QUALITY_METAVAR = "economy|balanced|careful|0..1"


def quality_of(given: str) -> float:
    """A quality target, by its name or as a number; the `type` of an option. Raises `click.BadParameter`."""
    from classifier.policy.quality_setting import QualitySetting, target_of

    try:
        found: float | None = target_of(msgspec.convert(given, QualitySetting, strict=False))
    except msgspec.ValidationError:
        found = None
    if found is None:
        raise click.BadParameter(f"{given!r} is neither economy, balanced or careful nor a number from 0 to 1.")
    return found


def settings_from(**given: Any) -> "Settings":
    """Settings from the environment and from options that were given. Raises `SettingsError`."""
    from gateway.settings import load_settings

    return load_settings(**given)


def echo_json(value: Any) -> None:
    """One JSON document, indented, on standard output."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


def table(head: list[str], rows: list[list[str]]) -> str:
    """Columns padded to their widest cell; numbers are the caller's to format."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [head, *rows]]
    return "\n".join(line.rstrip() for line in lines)


@contextmanager
def staged_progress(label: str) -> Iterator[Callable[[str, float], None]]:
    """A progress bar on standard error, moved by calls of (stage, share done)."""
    # Only its `pos`, `label` and `update` are used; click declares the bar's items, which there are none of.
    bar: Any
    with click.progressbar(length=1000, label=label, file=sys.stderr) as bar:

        def show(stage: str, share: float) -> None:
            bar.label = stage
            bar.update(round(share * 1000) - bar.pos)

        yield show
