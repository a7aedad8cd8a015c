"""`aio checklist`: the sources' best practices, with pass, fail or not measured, and the evidence for each."""

from pathlib import Path

import click

from gateway.cli.options import echo_json, json_option, table


@click.command()
@click.option(
    "--measurements",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path("docs/measurements"),
    show_default=True,
    help="Folder of measurements and of the record of test runs.",
)
@click.option("--run", "run_tests", is_flag=True, help="Run the tests of the items, and record their results.")
@click.option("--only", metavar="ROW", help="Show one row only, such as CK-03.")
@json_option
def checklist(measurements: Path, run_tests: bool, only: str | None, as_json: bool) -> None:
    """Print every item with its evidence. Exits with 1 if one fails. `--run` needs a checkout."""
    from gateway.reporting.checklist import ITEMS, checklist, run_items, write_record

    if run_tests:
        for key, run in run_items(Path.cwd(), tuple(item for item in ITEMS if only in (None, item.row))):
            click.echo(f"{key}: {run.summary}", err=True)
            write_record(measurements, {key: run})
    checked = [each for each in checklist(measurements) if only in (None, each.item.row)]
    if as_json:
        echo_json(checked)
    else:
        rows = [[each.item.row, each.item.area, each.item.item, each.status, each.evidence] for each in checked]
        click.echo(table(["row", "area", "item", "status", "evidence"], rows))
    if any(each.status == "fail" for each in checked):
        raise SystemExit(1)
