"""`aio report`: the sources' tables next to measurements and a ledger's records, as one page."""

import time
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.cli.options import catalog_option, data_dir_option, database_option, echo_json, json_option, settings_from

if TYPE_CHECKING:
    from datetime import datetime

    from sqlalchemy.ext.asyncio import AsyncEngine

    from gateway.reporting.live import Live

# Characters of a text that are printed.
_CLIP = 240


@click.group(invoke_without_command=True)
@click.option(
    "--measurements",
    type=click.Path(file_okay=False, path_type=Path),
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

    Example: aio report --page docs/results/report.md
    """
    if context.invoked_subcommand is not None:
        return
    if not measurements.is_dir():
        raise click.BadParameter(f"There is no folder {measurements}.", param_hint="--measurements")
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


@report.command()
@click.option(
    "--since", type=click.DateTime(), metavar="TIME", help="Requests from this time (UTC) on: 2026-01-31 or …T12:00:00."
)
@click.option(
    "--last", type=click.IntRange(1, 1_000_000), default=5_000, show_default=True, help="At most so many requests."
)
@catalog_option
@data_dir_option
@database_option
@json_option
def shadow(since: "datetime | None", last: int, as_json: bool, **given: Any) -> None:
    """Show what routing would have saved while it was observed, and how good its answers would have been.

    Figures are of the newest requests answered in observe mode (aio knobs routing mode=observe). The worst of the
    judged shadow answers follow, next to the given ones; --json prints their whole texts.
    """
    from gateway.cli.access.stored_order import with_database
    from gateway.composition.quality_loop import sampling_settings
    from quality.estimates.traffic import dollars
    from quality.shadow.figures import ShadowReport
    from quality.shadow.report import budget_now, shadow_report
    from tiers.catalog.load import load_catalog

    settings = settings_from(**given)
    sampling = sampling_settings(settings, len(load_catalog(settings.catalog).tiers))
    start = 0.0 if since is None else since.replace(tzinfo=UTC).timestamp()

    async def read(engine: "AsyncEngine") -> ShadowReport:
        return await shadow_report(engine, await budget_now(engine, sampling, time.time()), start, last)

    found = with_database(settings, read)
    if as_json:
        echo_json(found)
        return
    click.echo("\n".join(found.sentences))
    if not found.requests:
        return
    click.echo("\n" + "\n".join(found.method))
    for one in found.cases:
        prompt = (one.messages or [{}])[-1].get("content")
        head = f"{one.label.replace('_', ' ')}, by {one.judge}: request {one.request_id}"
        click.echo(f"\n{head}\n  prompt: {_clipped(prompt)}")
        click.echo(f"  tier {one.given_tier}, given, {dollars(one.given_usd)}: {_clipped(one.given_answer)}")
        cost = "cost unknown" if one.would_be_usd is None else dollars(one.would_be_usd)
        click.echo(f"  tier {one.would_be_tier}, routing, {cost}: {_clipped(one.would_be_answer)}")


def _clipped(text: str | None) -> str:
    """A text on one line, without characters that would steer a terminal."""
    if text is None:
        return "(deleted)"
    plain = "".join(one if one.isprintable() else " " for one in text[:_CLIP])
    return f"{plain}…" if len(text) > _CLIP else plain


def _live(days: float, given: dict[str, Any]) -> "Live":
    from gateway.cli.access.stored_order import with_database
    from gateway.reporting.live import read_live
    from tiers.catalog.load import load_catalog

    settings, now = settings_from(**given), time.time()
    catalog = load_catalog(settings.catalog)
    return with_database(settings, lambda engine: read_live(engine, catalog, now - days * 86_400, now))
