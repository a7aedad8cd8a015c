"""`aio report`: does routing pay? What it costs, how good it is, whether it pays, and what would help."""

import time
from typing import TYPE_CHECKING, Any

import click

from gateway.cli.options import (
    QUALITY_METAVAR,
    echo_json,
    ledger_options,
    quality_of,
    settings_from,
    table,
    with_database,
)

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


@click.command()
@click.argument("former", required=False, metavar="", expose_value=False, callback=_refuse_former)
@click.option("--days", type=click.FloatRange(min=0, min_open=True), default=30.0, help="Days of requests.")
@click.option("--tag", help="Split costs by the values of this name in the requests' metadata, with --json.")
@click.option(
    "--quality-target", "previewed", type=quality_of, metavar=QUALITY_METAVAR, help="Another target to look at."
)
@ledger_options
def report(days: float, tag: str | None, previewed: float | None, as_json: bool, **options: Any) -> None:
    """Show whether routing pays: what it costs, how good it is, whether it pays, and what would help.

    Stages of an answer are medians of the newest answers, for an answer of 100 tokens, next to a budget of 100 ms.
    """
    from gateway.operations.routing_report import stored_report
    from quality.routing_report import Period

    settings, now = settings_from(**options), time.time()
    period = Period(since=now - days * 86_400, until=now, tag=tag, previewed=previewed)
    found = with_database(settings, lambda engine: stored_report(engine, settings, period))
    if as_json:
        echo_json(found)
        return
    tables = {"What it costs": _cost_tables(found.cost), "How good it is": [_tier_table(found.quality)]}
    for question, sentences in found.sections:
        click.echo(f"{question}\n\n" + "\n".join(sentences) + "\n")
        for lines in tables.get(question, []):
            click.echo(f"{lines}\n")
    _echo_worst(found)


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
            "–" if tier.tasks is None else tier.tasks.shown(),
        ]
        for tier in quality.tiers
    ]
    return table(["tier", "model", "verified no worse", "tasks right"], rows)


def _echo_worst(routing: "RoutingReport") -> None:
    worst = routing.worth.observed.worst
    if worst:
        rows = [
            [one.request_id, str(one.given), str(one.would_be), (one.label or "").replace("_", " "), one.judge or ""]
            for one in worst
        ]
        head = ["request", "given by", "routing", "judged", "judge"]
        click.echo(f"The worst answers of routing while it was observed\n\n{table(head, rows)}")
