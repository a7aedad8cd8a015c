"""`python -m benchmarks origins`: commit, day and age of each stored measurement."""

from datetime import UTC, datetime
from pathlib import Path

import click

from gateway.operations.cli.options import table


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path("docs/measurements"),
    show_default=True,
    help="Of measurements.",
)
def origins(files: tuple[Path, ...], folder: Path) -> None:
    """Print where the measurements of a folder are from, and how old they are.

    FILES, if given, are first recorded as measured just now, by this checkout on this machine: lists of plain rows do
    not say it themselves. Files that name no commit are recorded with the commit that stored them.
    """
    from benchmarks.requirements.evidence_runs import git
    from benchmarks.sources.origins import UNKNOWN, measurements_of, origin_of, record_measured, record_stored

    record_measured(list(files))
    record_stored(folder)
    rows, today = [], datetime.now(UTC).date()
    for path in measurements_of(folder):
        found = origin_of(path)
        days = found.age_days(today)
        since = git(folder, "rev-list", "--count", f"{found.commit.rstrip('+')}..HEAD") if found.commit else None
        age = [UNKNOWN if days is None else str(days), UNKNOWN if since is None else since]
        rows.append([path.name, found.processor, found.at, found.day or UNKNOWN, *age])
    click.echo(table(["file", "machine", "commit", "day", "days ago", "commits ago"], rows))
