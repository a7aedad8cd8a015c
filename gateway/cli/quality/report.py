"""`aio report`: does routing pay? What it costs, how good it is, whether it pays, and what would help."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import click
import msgspec
from click.core import ParameterSource
from msgspec import Meta

from gateway.base.field_types import Positive
from gateway.cli.live.server import Server
from gateway.cli.options import (
    LEDGER,
    QUALITY_METAVAR,
    echo_json,
    gone_option,
    json_option,
    quality_of,
    setting_options,
    settings_from,
    table,
    with_database,
)
from gateway.cli.typed_options import options_of

if TYPE_CHECKING:
    from quality.estimates.costs import Part
    from quality.routing_report import CostSection, QualitySection, RoutingReport

_FORMER = {
    "live": "What it costs",
    "learning": "What would help",
    "worth": "Does it pay?",
    "shadow": "Does it pay?",
}
"""Commands that became sections."""


def _refuse_former(_context: click.Context, _argument: click.Parameter, name: str | None) -> None:
    if name in _FORMER:
        raise click.UsageError(f"aio report {name} is gone: aio report shows it under {_FORMER[name]!r}")
    if name is not None:
        raise click.UsageError(f"Got unexpected extra argument ({name})")


ANSWER_SECONDS = 120.0
"""A gateway computes what was learned before it answers."""


class ReportOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `aio report`."""

    days: Positive = 30.0
    """Days of requests, up to now."""
    tag: str | None = None
    """Split costs by the values of this name in the requests' metadata. Shown with --json."""
    previewed: Annotated[float, Meta(title=QUALITY_METAVAR, extra={"type": quality_of})] | None = msgspec.field(
        name="quality_target", default=None
    )
    """Another quality target to look at."""
    url: Annotated[str, Meta(extra={"envvar": "AIO_URL"})] | None = None
    """Ask the gateway that listens here, instead of the database. [AIO_URL]"""
    key: Annotated[str, Meta(extra={"envvar": "AIO_ADMIN_KEY"})] | None = None
    """With --url: a viewer or admin key of the gateway. [AIO_ADMIN_KEY]"""


@click.command()
@click.argument("former", required=False, metavar="", expose_value=False, callback=_refuse_former)
@gone_option("--since", "--days chooses the period of the report")
@gone_option("--last", "--days chooses the period of the report")
@options_of(ReportOptions)
@setting_options(*LEDGER)
@json_option
def report(options: ReportOptions, as_json: bool, **stored: str | None) -> None:
    """Show whether routing pays: what it costs, how good it is, whether it pays, and what would help.

    Without --url the report is made from the database here. With --url, or AIO_URL, the gateway that runs there makes
    it, which needs a key of scope viewer or admin.

    Stages of an answer are medians of the newest answers, for an answer of 100 tokens, next to a budget of 100 ms.
    """
    from quality.routing_report import Period, RoutingReport

    now = time.time()
    period = Period(since=now - options.days * 86_400, until=now, tag=options.tag, previewed=options.previewed)
    if (server := _server(options, stored)) is not None:
        query = {"since": period.since, "until": period.until, "tag": period.tag, "quality_target": period.previewed}
        present = {name: value for name, value in query.items() if value is not None}
        answer = server.ask("GET", "/report", query=present, timeout=ANSWER_SECONDS, root="/admin/api")
        if as_json:
            echo_json(answer)
            return
        routing = _decoded(answer, RoutingReport, server)
    else:
        from gateway.operations.routing_report import stored_report

        settings = settings_from(**stored)
        routing = with_database(settings, lambda engine: stored_report(engine, settings, period))
    if as_json:
        echo_json(routing)
        return
    tables = {"What it costs": _cost_tables(routing.cost), "How good it is": [_tier_table(routing.quality)]}
    for question, sentences in routing.sections:
        click.echo(f"{question}\n\n" + "\n".join(sentences) + "\n")
        for lines in tables.get(question, []):
            click.echo(f"{lines}\n")
    _echo_worst(routing)


def _server(options: ReportOptions, stored: dict[str, str | None]) -> Server | None:
    """Return the gateway to ask; None for the database here. Raises `click.UsageError` where both are named."""
    if options.url is None:
        return None
    named = [f"--{name.replace('_', '-')}" for name, value in stored.items() if value is not None]
    if named:
        source = click.get_current_context().get_parameter_source("url")
        if source is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--url asks a gateway, which has its own database: leave out {', '.join(named)}")
        return None
    return Server(url=options.url, key=options.key)


def _decoded(answer: Any, kind: "type[RoutingReport]", server: Server) -> "RoutingReport":
    """Return the report that a gateway sent. Raises `click.ClickException` if it has another form."""
    try:
        return msgspec.convert(answer, kind, strict=False)
    except msgspec.ValidationError as error:
        raise click.ClickException(
            f"{server.url} sent a report of another form ({error}): use the `aio` of its version"
        ) from error


def _cost_tables(cost: "CostSection") -> list[str]:
    head = ["tier", "model", "requests", "share", "p95 ms", "$ per 1k tokens", "spent", "checks", "saved, net"]
    models = {str(number): model for number, model in cost.models.items()}
    p95_ms = {str(number): timings.e2e_p95_ms for number, timings in cost.timings.items()}
    rows = [
        [part.name or "", models.get(part.name or "", "–"), *_cells(part, p95_ms.get(part.name or ""))]
        for part in cost.costs.by_tier
    ]
    whole = None if cost.all_timings is None else cost.all_timings.e2e_p95_ms
    tables = [table(head, [*rows, ["all", "", *_cells(cost.costs.total, whole)]])]
    for number, stages in cost.stages.items():
        lines = [[stage.name, f"{stage.budget_ms:g}", f"{stage.measured_ms:.2f}", stage.source] for stage in stages]
        budget, measured = sum(stage.budget_ms for stage in stages), sum(stage.measured_ms for stage in stages)
        lines.append(["all", f"{budget:g}", f"{measured:.2f}", ""])
        answers = f"Tier {number}, {cost.timings[number].answers:,} answers"
        tables.append(f"{answers}\n\n{table(['stage', 'budget ms', 'here ms', 'from'], lines)}")
    return tables


def _cells(part: "Part", p95_ms: float | None) -> list[str]:
    from quality.estimates.costs import dollars

    return [
        f"{part.spent.requests:,}",
        f"{part.share:.1%}",
        "–" if p95_ms is None else f"{p95_ms:,.0f}",
        dollars(part.cost_per_1k_tokens_usd),
        dollars(part.spent.cost_usd),
        dollars(part.net.checks_usd),
        "–" if part.net.share is None else f"{part.net.share:.1%}",
    ]


def _tier_table(quality: "QualitySection") -> str:
    rows = [
        [
            str(tier.tier),
            tier.model,
            "–" if tier.verified is None else tier.verified.shown(),
            "–" if tier.people is None else f"{tier.people.count:,} of {tier.people.total:,}",
            "–" if tier.tasks is None else tier.tasks.shown(),
        ]
        for tier in quality.tiers
    ]
    return table(["tier", "model", "verified no worse", "rated good by people", "tasks right"], rows)


def _echo_worst(routing: "RoutingReport") -> None:
    worst = routing.worth.observed.worst
    if worst:
        rows = [
            [row.request_id, str(row.given), str(row.would_be), (row.label or "").replace("_", " "), row.judge or ""]
            for row in worst
        ]
        head = ["request", "given by", "routing", "judged", "judge"]
        click.echo(f"The worst answers of routing while it was observed\n\n{table(head, rows)}")
