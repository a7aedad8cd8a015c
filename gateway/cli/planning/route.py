"""`aio route`: a routing decision without a server, or a past one replayed from its record; `aio backtest`: what
routing would have done with a log of prompts, its cost and its quality.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import msgspec
from msgspec import Meta

from classifier.complexity.quality_setting import QUALITY_SETTINGS
from gateway.base.field_types import Count
from gateway.base.settings import Settings
from gateway.cli.options import (
    FILE,
    LEDGER,
    QUALITY_METAVAR,
    echo_answer,
    echo_json,
    gone_option,
    json_option,
    quality_of,
    table,
    with_database,
    with_settings,
)
from gateway.cli.typed_options import options_of

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from classifier.decision import Decision, PolicyInputs
    from gateway.base.inference_request import Caller
    from gateway.inference.router import RoutingService
    from gateway.planning.backtests.backtest import Report
    from tiers.catalog.catalog import Catalog


class RouteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `aio route`."""

    quality: Annotated[float, Meta(title=QUALITY_METAVAR, extra={"type": quality_of})] | None = None
    """Quality target: how much you pay for quality."""
    max_cost: Annotated[float, Meta(title="USD")] | None = None
    """Maximum cost of the answer in US dollars."""
    min_tier: Count | None = None
    """Lowest tier that may answer."""
    max_tokens: Count | None = None
    """Token limit of the answer, which limits its cost."""
    key: Annotated[str, Meta(title="ID")] | None = None
    """Id or name of the key that asks. Its terms and labels count. [no key]"""
    replay: Annotated[str, Meta(title="ID")] | None = None
    """Reproduce the decision of a past request from its record."""


@click.command()
@click.argument("prompt", required=False)
@options_of(RouteOptions)
@with_settings(*LEDGER)
@json_option
def route(prompt: str | None, options: RouteOptions, as_json: bool, settings: Settings) -> None:
    """Show which tier would answer PROMPT, the probabilities and prices of all tiers, and why.

    It decides as a server of this data folder and database would: with its classifier, knobs and labels.
    """
    replay = options.replay
    if (prompt is None) == (replay is None):
        raise click.UsageError("give either a PROMPT or --replay ID")
    from gateway.base.stores.data_folder import refuse_file

    refuse_file(settings.data_path)
    if replay is not None:
        _replay(settings, replay, as_json)
        return
    decision, milliseconds, catalog, class_model = _decide(settings, prompt or "", options)
    echo_answer(
        as_json,
        {"decision": decision, "cpu_ms": milliseconds, "class_model": class_model},
        f"{_text(decision, catalog)}\ncomplexity class from {class_model}\n\n"
        f"decided in {milliseconds:.2f} ms of CPU time",
    )


def _decide(settings: Settings, prompt: str, options: RouteOptions) -> "tuple[Decision, float, Catalog, str]":
    from gateway.base.inference_request import KEYLESS, RoutingOptions
    from gateway.inference.agreement import Agreements
    from gateway.planning.backtests.backtest import caller_named, dry_request, dry_routing, follow_labels
    from tiers.conversation import Turn

    routing = dry_routing(settings)
    agreements = Agreements(routing.knobs, routing)

    async def as_a_server(engine: "AsyncEngine") -> "Caller":
        await follow_labels(routing, engine, settings.keys_are_tenants)
        await routing.references.restore(engine, routing.served.strongest)
        await agreements.catch_up(engine)
        return (
            KEYLESS
            if options.key is None
            else await caller_named(settings, routing.served.catalog, engine, options.key)
        )

    caller = with_database(settings, as_a_server)
    turn = Turn.of("user", prompt)
    wishes = RoutingOptions(quality_target=options.quality, max_cost_usd=options.max_cost, min_tier=options.min_tier)
    request = dry_request([turn], max_tokens=options.max_tokens, caller=caller, options=wishes)
    routing.route(request)  # the first decision fills caches that are warm in a server
    began = time.thread_time()
    decision = agreements.told(request, routing.route(request))
    return decision, (time.thread_time() - began) * 1e3, routing.served.catalog, _class_model(routing)


def _class_model(routing: "RoutingService") -> str:
    """The name of the model that classified, with the reason where another one was asked for."""
    from gateway.inference.classifier_versions import ActiveClassifier

    if not isinstance(routing.classifier, ActiveClassifier) or (now := routing.classifier.serving_or_none) is None:
        return "the prompt's length"
    refusal = routing.classifier.class_refusal
    return f"{now.current.class_model}{f' ({refusal})' if refusal else ''}"


def _text(decision: "Decision", catalog: "Catalog", answered: tuple[int, str] | None = None) -> str:
    """The decision for people. `answered`: the tier and the model of a recorded answer; a catalogue that has another
    model there says nothing of the other tiers' models either."""
    inputs, prediction = decision.inputs, decision.inputs.prediction
    models = {spec.number: spec.served_name for spec in catalog.tiers}
    if answered is not None and answered[1] and models.get(answered[0]) != answered[1]:
        models = dict([answered])
    estimated = {spec.number for spec in catalog.tiers if spec.price.estimated}
    rows = [
        [
            f"{'→' if number == decision.tier else ' '} {number}",
            models.get(number, "?"),
            f"{prediction.p_ok[number - 1]:.3f}",
            f"${inputs.costs[number - 1]:.6f}{' estimated' if number in estimated else ''}",
            "ruled out" if score is None else f"{score:.4f}",
        ]
        for number, score in enumerate(decision.scores, start=1)
    ]
    lines = [
        f"tier {decision.tier}: {decision.reason}",
        "",
        table(["tier", "model", "P(good enough)", "predicted cost", _score_name(inputs)], rows),
        "",
        _rule(inputs),
        f"classifier {prediction.classifier_version} ({prediction.kind})",
        f"unfamiliarity of the prompt: {prediction.novelty:.2f} (1 means that no labels of such prompts exist)",
    ]
    if prediction.contributions:
        moved = ", ".join(f"{name} {effect:+.2f}" for name, effect in prediction.contributions)
        lines.append(f"effects on the logit of tier 1: {moved}")
    return "\n".join(lines)


def _score_name(inputs: "PolicyInputs") -> str:
    return "utility" if inputs.objective == "utility" else "score"


def _rule(inputs: "PolicyInputs") -> str:
    target = f"quality target {inputs.quality_target:.3f}"
    if inputs.objective == "target":
        return f"{target}: the cheapest tier with P(good enough) of at least {inputs.tau:.3f} answers"
    return (
        f"{target}: the tier with the highest utility answers; the strongest tier usually costs "
        f"${inputs.reference:.6f}, which counts as {100 * inputs.exchange:.3g} points of P(good enough)"
    )


def _replay(settings: Settings, request_id: str, as_json: bool) -> None:
    import msgspec

    from classifier.policy.decide import decide
    from quality.records.record import Record
    from quality.store.queries import get_request
    from tiers.catalog.load import load_catalog

    record = with_database(settings, lambda engine: get_request(engine, request_id))
    if record is None:
        raise click.ClickException(f"no request {request_id!r} is in the database {settings.database}")
    if not isinstance(record, Record):
        raise click.ClickException(f"request {request_id!r} was for embeddings, which are not routed")
    again = decide(record.decision.inputs)
    # The words of another version may differ.
    same = msgspec.structs.replace(again, reason=record.decision.reason) == record.decision
    if as_json:
        echo_json({"request_id": request_id, "same": same, "recorded": record.decision, "replayed": again})
    else:
        click.echo(_text(again, load_catalog(settings.catalog), answered=(record.tier, record.model)))
        found = "the record has the same decision" if same else f"THE RECORD HAS ANOTHER DECISION: {record.decision}"
        click.echo(f"\n{found}")
    if not same:
        raise SystemExit(1)


class BacktestOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `aio backtest`."""

    targets: tuple[Annotated[float, Meta(title=QUALITY_METAVAR, extra={"type": quality_of})], ...] = msgspec.field(
        name="quality", default=()
    )
    """Quality target. May be repeated. [economy, balanced, careful]"""
    names: Annotated[tuple[str, ...], Meta(title="NAME=NUMBER")] = msgspec.field(name="tier", default=())
    """Tier that a name in the scores stands for. May be repeated."""


LEAST_LABELLED = 30
"""Labelled rows from which a share of them says something."""
_OWN_LOG = "write LOG yourself. docs/routing.md has an example of a few lines"


@click.command()
@click.argument("log", type=FILE)
@options_of(BacktestOptions)
@gone_option("--training", "`aio outcomes import` learns from the labels of a log")
@gone_option("--example", _OWN_LOG)
@gone_option("--rows", _OWN_LOG)
@gone_option("--data", _OWN_LOG)
@with_settings("catalog", "data_dir")
@json_option
def backtest(log: Path, options: BacktestOptions, as_json: bool, settings: Settings) -> None:
    """Route every prompt of LOG offline, and print the split, the cost and the quality of each target.

    LOG has JSON lines and may be gzipped. The command sends nothing: the active classifier decides, the prices are the
    catalogue's, and the quality comes from the labels in LOG.
    """
    from gateway.planning.backtests.backtest import TARGETS, Backtest, dry_routing
    from gateway.planning.backtests.log import TierNames, read_log

    routing = dry_routing(settings)
    tier_names = TierNames(len(routing.served.catalog.tiers), dict(map(_named_tier, options.names)))
    tested = Backtest(routing, tier_names, options.targets or TARGETS)
    for row in read_log(log):
        tested.add(row)
    report = tested.report()
    echo_answer(as_json, report, _report_text(report))


def _named_tier(text: str) -> tuple[str, int]:
    from tiers.catalog.tier_spec import MAX_TIERS

    name, equals, number = text.rpartition("=")
    if not equals or not name or not number.isdigit() or not 1 <= int(number) <= MAX_TIERS:
        raise click.UsageError(f"--tier {text}: give NAME=NUMBER, the number from 1 to {MAX_TIERS}")
    return name, int(number)


def _report_text(report: "Report") -> str:
    tiers = len(report.targets[0].split)
    head = ["target", *(f"tier {k}" for k in range(1, tiers + 1)), "$ per request", "saving", "predicted"]
    rows = []
    for target in report.targets:
        cells = [_target(target.quality_target), *(f"{share:.1%}" for share in target.split)]
        rows.append(
            [*cells, f"{target.cost_per_request_usd:.6f}", _interval(target.saving), f"{target.predicted_no_worse:.1%}"]
        )
    mean = report.strongest_cost_usd / report.rows
    lines = [
        f"{report.rows:,} requests, decided by {report.classifier} ({report.kind}); the strongest tier alone would "
        f"cost ${report.strongest_cost_usd:.6f}, which is ${mean:.6f} per request",
    ]
    if report.estimated_answers:
        lines.append(f"{report.estimated_answers:,} rows have no answer length; the catalogue's counts")
    if report.priced:
        lines.append(f"{report.priced:,} rows have a price, ${report.paid_usd:.6f} together")
    return "\n".join([*lines, "", table(head, rows), "", *_quality(report)])


def _target(value: float) -> str:
    names = [name for name, number in QUALITY_SETTINGS.items() if number == value]
    return " ".join([f"{value:.2f}", *names])


def _quality(report: "Report") -> Sequence[str]:
    if report.labelled < LEAST_LABELLED:
        few = f"{report.labelled:,} rows have" if report.labelled != 1 else "1 row has"
        return [
            f"{few} labels of the strongest tier and of another one; quality is shown here from {LEAST_LABELLED} "
            "such rows on"
        ]
    rows = []
    for target in report.targets:
        if target.labelled is not None:
            good = target.labelled.no_worse
            shown = f"{good.count / good.total:.1%} [{good.low:.1%}, {good.high:.1%}]"
            gain = _interval(target.labelled.gain, sign="+")
            rows.append([_target(target.quality_target), shown, gain, _interval(target.labelled.saving)])
    labels = ", ".join(f"tier {k} {count:,}" for k, count in enumerate(report.tiers_labelled, start=1))
    head = ["target", "no worse than the strongest", "more than random assignment", "saving there"]
    return [f"measured on the {report.labelled:,} labelled rows (labels: {labels}), 95% intervals", table(head, rows)]


def _interval(interval: Any, sign: str = "") -> str:
    return f"{interval.value:{sign}.1%} [{interval.low:{sign}.1%}, {interval.high:{sign}.1%}]"
