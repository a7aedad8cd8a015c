"""`aio report`: what a ledger recorded of served requests, of learning, and of routing that was only observed."""

import time
from datetime import UTC
from typing import TYPE_CHECKING, Any

import click

from gateway.operations.cli.options import echo_answer, echo_json, ledger_options, settings_from, table, with_database

if TYPE_CHECKING:
    from datetime import datetime

    from sqlalchemy.ext.asyncio import AsyncEngine

    from quality.estimates.served import StageTime

# Characters of a text that are printed.
_CLIP = 240


@click.group()
def report() -> None:
    """Show what a ledger recorded: what was served, what was learned, what routing would have saved."""


@report.command()
@click.option("--days", type=click.FloatRange(min=0, min_open=True), default=30.0, help="Days of requests.")
@ledger_options
def live(days: float, as_json: bool, **options: Any) -> None:
    """Show what was served: requests, cost and saving by tier, and how long each stage of an answer took.

    Stages are medians of the newest answers, for an answer of 100 tokens, next to a budget of 100 ms.
    """
    from quality.estimates.served import dollars, read_served, traffic_rows
    from tiers.catalog.load import load_catalog

    settings, now = settings_from(**options), time.time()
    catalog = load_catalog(settings.catalog)
    served = with_database(settings, lambda engine: read_served(engine, catalog, now - days * 86_400, now))
    if as_json:
        echo_json(served)
        return
    head = ["tier", "model", "requests", "share", "p95 ms", "$ per 1k tokens", "cost", "saving"]
    click.echo(f"Requests of {days:g} days\n\n{table(head, traffic_rows(served))}\n")
    costs = served.costs
    saving = "–" if costs.total.net.share is None else f"{costs.total.net.share:.1%}"
    click.echo(
        f"The saving is against the strongest tier alone. Checking answers cost {dollars(costs.verification_usd)}, "
        f"testing their judge {dollars(costs.judge_test_usd)}; with that, the saving is {saving}."
    )
    for tier, stages in served.stages().items():
        click.echo(f"\nTier {tier}, {served.timings[tier].answers:,} answers\n\n{_stage_table(stages)}")


@report.command()
@click.option("--days", type=click.FloatRange(min=0, min_open=True), default=30.0, help="Days of decisions.")
@ledger_options
def learning(days: float, as_json: bool, **options: Any) -> None:
    """Show what was learned for each key: labels, classes of prompts, saving, quality, and the learning curve."""
    from gateway.operations.worth import stored_label_source
    from quality.learning.learning import LearningRecord, in_words

    settings, since = settings_from(**options), time.time() - days * 86_400
    source = stored_label_source(settings)
    found = with_database(settings, lambda engine: LearningRecord(engine).of(source, since))
    every = (found.together, *found.keys) if len(found.keys) > 1 else found.keys
    echo_answer(as_json, found, "\n".join(map(in_words, every)) or "No requests and no labels yet.")


@report.command()
@ledger_options
def worth(as_json: bool, **options: Any) -> None:
    """Show whether routing pays, for the catalogue and for each key with enough requests that every tier answered.

    Routing is compared with every fixed tier and with the best mix of them at the same cost; the bounds hold however
    often one looks.
    """
    from classifier.complexity.quality_setting import DEFAULT_TARGET, target_of
    from gateway.inference.routing_knobs import RoutingKnobFile
    from gateway.operations.worth import worth_said
    from quality.comparison.routing_probes import WorthAsked, WorthRecord
    from tiers.catalog.load import load_catalog

    settings = settings_from(**options)
    tiers, knobs = load_catalog(settings.catalog).tier_fingerprints, RoutingKnobFile(settings.routing_knobs_path).active
    target = target_of(settings.quality_target if knobs.quality_target is None else knobs.quality_target)
    asked = WorthAsked(tuple(tiers), DEFAULT_TARGET if target is None else target, knobs.constant_worth)
    shown = worth_said(with_database(settings, lambda engine: WorthRecord(engine).of(asked)), knobs.constant)
    sentences = [shown.catalogue.sentence, *(f"{one.name}: {one.sentence}" for one in shown.keys)]
    echo_answer(as_json, shown, "\n".join(sentences))


@report.command()
@click.option(
    "--since", type=click.DateTime(), metavar="TIME", help="Requests from this time (UTC) on: 2026-01-31 or …T12:00:00."
)
@click.option("--last", type=click.IntRange(1, 1_000_000), default=5_000, help="At most so many requests.")
@ledger_options
def shadow(since: "datetime | None", last: int, as_json: bool, **options: Any) -> None:
    """Show what routing would have saved while it was observed, and how good its answers would have been.

    Figures are of the newest requests answered in observe mode (aio knobs routing mode=observe). The worst of the
    judged shadow answers follow, next to the given ones; --json prints their whole texts.
    """
    from gateway.operations.quality_loop.quality_loop import sampling_settings
    from quality.comparison.shadow_report import ShadowReport, budget_now, shadow_report
    from quality.estimates.traffic import dollars
    from tiers.catalog.load import load_catalog

    settings = settings_from(**options)
    sampling = sampling_settings(settings, load_catalog(settings.catalog))
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


def _stage_table(stages: "list[StageTime]") -> str:
    rows = [[stage.name, f"{stage.budget_ms:g}", f"{stage.measured_ms:.2f}", stage.source] for stage in stages]
    budget, measured = (sum(times) for times in zip(*((one.budget_ms, one.measured_ms) for one in stages), strict=True))
    return table(["stage", "budget ms", "here ms", "from"], [*rows, ["all", f"{budget:g}", f"{measured:.2f}", ""]])


def _clipped(text: str | None) -> str:
    """A text on one line, without characters that would steer a terminal."""
    if text is None:
        return "(deleted)"
    plain = "".join(one if one.isprintable() else " " for one in text[:_CLIP])
    return f"{plain}…" if len(text) > _CLIP else plain
