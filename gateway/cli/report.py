"""`aio report`: the sources' tables next to measurements and a ledger's records, as one page."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.cli.options import catalog_option, data_dir_option, database_option, echo_json, json_option, settings_from

if TYPE_CHECKING:
    from gateway.reporting.live import Live


@click.group(invoke_without_command=True)
@click.option(
    "--measurements",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path("docs/measurements"),
    show_default=True,
    help="Folder of measurements.",
)
@click.option("--live", "is_live", is_flag=True, help="Read the ledger and the catalogue too: cost, tiers, stages.")
@click.option(
    "--days", type=click.FloatRange(min=0, min_open=True), default=30.0, show_default=True, help="Days of the ledger."
)
@click.option("--page", type=click.Path(dir_okay=False, path_type=Path), help="Page to write.  [print it]")
@catalog_option
@data_dir_option
@database_option
@click.pass_context
def report(
    context: click.Context, /, measurements: Path, is_live: bool, days: float, page: Path | None, **given: Any
) -> None:
    """Make the report from measurements, and from a ledger with `--live` or `--database-url`.

    Example: aio report --page docs/report.md
    """
    if context.invoked_subcommand is not None:
        return
    from gateway.reporting.measured import MeasurementError
    from gateway.reporting.report import report as made

    live = _live(days, given) if is_live or given["database_url"] else None
    try:
        text = made(measurements, live)
    except MeasurementError as error:
        raise click.ClickException(str(error)) from error
    if page is None:
        click.echo(text, nl=False)
    else:
        page.write_text(text, encoding="utf-8")


@report.command()
@click.option(
    "--days", type=click.FloatRange(min=0, min_open=True), default=30.0, show_default=True, help="Days of decisions."
)
@catalog_option
@data_dir_option
@database_option
@json_option
def learning(days: float, as_json: bool, **given: Any) -> None:
    """Show what was learned for each key: labels, classes of prompts, saving, quality, and the learning curve."""
    from gateway.cli.access.stored_order import with_database
    from gateway.routing.label_source import stored_label_source
    from quality.learning.learning import LearningRecord, in_words

    settings, since = settings_from(**given), time.time() - days * 86_400
    source = stored_label_source(settings)
    found = with_database(settings, lambda engine: LearningRecord(engine).of(source, since))
    if as_json:
        echo_json(found)
        return
    for one in (found.together, *found.keys) if len(found.keys) > 1 else found.keys:
        click.echo(in_words(one, found.tau))
    if not found.keys:
        click.echo("No requests and no labels yet.")


def _live(days: float, given: dict[str, Any]) -> "Live":
    from gateway.cli.access.stored_order import with_database
    from gateway.reporting.live import read_live
    from tiers.catalog.load import load_catalog

    settings, now = settings_from(**given), time.time()
    catalog = load_catalog(settings.catalog)
    return with_database(settings, lambda engine: read_live(engine, catalog, now - days * 86_400, now))
