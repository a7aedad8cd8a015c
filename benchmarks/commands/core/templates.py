"""`python -m benchmarks templates FOLDER`: what becomes of chat templates, and of the tool calls that they write."""

from pathlib import Path

import click

from gateway.operations.cli.options import json_option


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@json_option
def templates(folder: Path, as_json: bool) -> None:
    """Read each `*.jinja` of FOLDER: does it compile, does it know tools, and is a call that it writes read back?

    A template that knows tools and shows no calls is named when a model with it is loaded.
    """
    import msgspec

    from benchmarks.core.templates import bench_templates

    rows = bench_templates(folder)
    if as_json:
        click.echo(msgspec.json.encode(rows))
        return
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.outcome] = counts.get(row.outcome, 0) + 1
        if row.outcome not in ("read back", "no tools"):
            click.echo(f"{row.name}: {row.outcome}{': ' + row.detail if row.detail else ''}")
    click.echo(", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
