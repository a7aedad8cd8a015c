"""`python -m benchmarks checklist`: best practices and requirements, each with its state and its evidence."""

from pathlib import Path

import click

from gateway.operations.cli.options import echo_json, json_option, table


@click.command()
@click.option(
    "--measurements",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path("docs/measurements"),
    show_default=True,
    help="Folder of measurements and of the record of test runs.",
)
@click.option(
    "--run", "run_tests", is_flag=True, help="Run the tests that requirements name, and record their results."
)
@click.option(
    "--reports",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Record the results that JUnit reports in this folder have, as .ci/run leaves them, instead of running.",
)
@click.option("--only", metavar="ROW", help="Requirements whose ID begins so, such as CK-03, GW or GW-05.")
@json_option
def checklist(measurements: Path, run_tests: bool, reports: Path | None, only: str | None, as_json: bool) -> None:
    """Print the best practices with their evidence; with `--only` also requirements. Exits with 1 if one fails.

    `--run` and `--reports` need a checkout without changes.
    """
    from benchmarks.requirements.checklist import checklist, named_tests, requirement_states
    from benchmarks.requirements.evidence_runs import EvidenceRunError, reported_runs, write_record
    from benchmarks.requirements.evidence_runs import run_tests as runs_of

    try:
        if reports is not None:
            write_record(measurements, reported_runs(Path.cwd(), reports, named_tests(only)))
        if run_tests:
            for test, run in runs_of(Path.cwd(), named_tests(only)):
                click.echo(f"{test}: {run.summary}", err=True)
                write_record(measurements, {test: run})
    except EvidenceRunError as error:
        raise click.ClickException(str(error)) from error
    checked = checklist(measurements)
    if only is not None:
        checked = [one for one in [*checked, *requirement_states(measurements)] if one.item.row.startswith(only)]
    if as_json:
        echo_json(checked)
    else:
        rows = [[each.item.row, each.item.area, each.item.item, each.status, each.evidence] for each in checked]
        click.echo(table(["row", "area", "item", "status", "evidence"], rows))
    if any(each.status == "fail" for each in checked):
        raise SystemExit(1)
