"""Does routing pay? One report that the dashboard's page, the API and `aio report` show: what routing costs, how good
its answers are, whether it pays, and what would help."""

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import msgspec
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.quality import training_rows
from quality.comparison import observed_routing, routing_worth
from quality.comparison.observed_routing import ObservedRouting
from quality.comparison.routing_probes import WorthFound, key_names
from quality.comparison.session_pairs import SessionVerdict, session_verdicts
from quality.estimates.costs import CostReport, cost_report, dollars
from quality.estimates.served import AnswerTimings, StageTime, answer_timings, recorded_stages
from quality.estimates.session_work import finished_work
from quality.estimates.targets import PROMPT_TOKENS, Predicted, Targets, read_targets
from quality.estimates.verified_sample import (
    ENOUGH_ANSWERS,
    Acceptance,
    KindShare,
    ReliabilityBin,
    Share,
    acceptance,
    kind_name,
    reliability,
)
from quality.evaluation.tier_accuracy import (
    AccuracyReport,
    ReportFileError,
    TierComparison,
    compare_tiers,
    mean_cost_usd,
    overpriced_tiers,
    stored_report,
)
from quality.learning.learning import Learning, in_words
from quality.verification.queue import VerificationQueue
from quality.verification.sampling import SamplingSettings, thinning
from tiers.catalog.catalog import Catalog, name_of_tier
from tiers.catalog.pricing import predicted_costs

FIRST_PROBES = 100
"""Requests answered by every tier that tell a share within ten points: 1.96 standard errors of one half."""
MOST_APPLICATIONS = 8
"""Applications shown: those with the most verified answers."""
_DAY = 86_400.0
_PACE_DAYS, _MOST_DAYS = 7, 365


class CostSection(msgspec.Struct, frozen=True, kw_only=True):
    """What it costs: the requests of the period."""

    sentences: list[str]
    costs: CostReport
    models: dict[int, str]
    """Of the catalogue, by tier."""
    timings: dict[int, AnswerTimings]
    """By tier that answered."""
    all_timings: AnswerTimings | None
    stages: dict[int, list[StageTime]]
    """Of an answer of 100 tokens, by tier, next to a budget of 100 ms."""


class TierQuality(msgspec.Struct, frozen=True, kw_only=True):
    """How good a tier is. `tasks` to `p_value` are of `aio bench tiers`, if it ran."""

    tier: int
    model: str
    input_usd_per_million: float
    output_usd_per_million: float
    price_estimated: str
    """Where an estimated price is from: size, seconds or order; else empty."""
    verified: Share | None
    """Of its verified answers, those no worse than the strongest tier's, which has none itself: it is the measure."""
    people: Share | None
    """Of the answers that people rated, those they found good."""
    tasks: Share | None = None
    """Tasks that it got right."""
    task_seconds: float | None = None
    task_usd: float | None = None
    not_better_than: int | None = None
    """The cheapest tier that it does not significantly beat at a higher price."""
    p_value: float | None = None


class KindQuality(msgspec.Struct, frozen=True, kw_only=True):
    """How good a tier is for one kind of prompts."""

    name: str
    share: KindShare


class QualitySection(msgspec.Struct, frozen=True, kw_only=True):
    """How good it is: the newest verified answers, against the strongest tier's."""

    sentences: list[str]
    overall: KindShare | None
    tiers: list[TierQuality]
    kinds: list[KindQuality]
    """By complexity class, and by application: a key with a system prompt."""
    calibration: list[ReliabilityBin]
    measured_at: datetime | None
    """When `aio bench tiers` ran."""


class WorthSection(msgspec.Struct, frozen=True, kw_only=True):
    """Does it pay: by requests that every tier answered."""

    sentences: list[str]
    worth: WorthFound
    observed: ObservedRouting
    """What routing would have done while it was only observed, in the period."""
    sessions: list[SessionVerdict]
    """Which pair of tiers serves agents' sessions, by client."""


class HelpSection(msgspec.Struct, frozen=True, kw_only=True):
    """What would help: more requests that every tier answers, more labels, another target, other tiers."""

    sentences: list[str]
    missing_probes: int
    """Requests that every tier must still answer until it is known whether routing pays."""
    probes_a_day: float
    targets: Targets
    learning: Learning | None
    """None without a classifier, and until it is computed."""


class RoutingReport(msgspec.Struct, frozen=True, kw_only=True):
    """The four answers. The period of costs is from `since` to before `until`, in epoch seconds."""

    since: float
    until: float
    cost: CostSection
    quality: QualitySection
    worth: WorthSection
    help: HelpSection

    @property
    def sections(self) -> list[tuple[str, list[str]]]:
        """The questions in order, with the sentences that answer them."""
        return [
            ("What it costs", self.cost.sentences),
            ("How good it is", self.quality.sentences),
            ("Does it pay?", self.worth.sentences),
            ("What would help", self.help.sentences),
        ]


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """What serves, as far as the report depends on it."""

    catalog: Catalog
    data_path: Path
    mix: Predicted
    """What is known of the tiers before any request (`even_mix`)."""
    target: float
    """The active quality target."""
    constant: str
    """The routing knob: off, propose or act."""
    sampling: SamplingSettings | None
    """None where nothing is verified."""


class Period(msgspec.Struct, frozen=True, kw_only=True):
    """Which requests are asked about, and what for."""

    since: float
    until: float
    tag: str | None = None
    """A name in the requests' `metadata` by whose values costs are split too."""
    previewed: float | None = None
    """A quality target to look at."""


async def routing_report(
    engine: AsyncEngine, served: Served, period: Period, worth: WorthFound, learning: Learning | None
) -> RoutingReport:
    """Return the report. Raises the database's errors."""
    measured = await asyncio.to_thread(_measured, served)
    sections = await asyncio.gather(
        _cost(engine, served.catalog, period),
        _quality(engine, served.catalog, measured),
        _worth(engine, served, period, worth),
        _help(engine, served, period.previewed, worth, learning, measured.overpriced),
    )
    cost, quality, pays, help_ = sections
    return RoutingReport(since=period.since, until=period.until, cost=cost, quality=quality, worth=pays, help=help_)


class _Measured(NamedTuple):
    """The results of `aio bench tiers` on the tiers that serve."""

    report: AccuracyReport | None
    overpriced: Sequence[TierComparison] = ()
    """Each dearer tier that does not beat a cheaper one."""
    problem: str = ""
    """What keeps the results from being read."""


def _measured(served: Served) -> _Measured:
    try:
        report = stored_report(served.data_path, served.catalog)
    except ReportFileError as error:
        return _Measured(None, problem=str(error))
    return _Measured(report, () if report is None else overpriced_tiers(compare_tiers(report, served.catalog)))


async def _cost(engine: AsyncEngine, catalog: Catalog, period: Period) -> CostSection:
    since, until = period.since, period.until
    numbers = [spec.number for spec in catalog.tiers]
    by_tier = {number: await answer_timings(engine, since, until, number) for number in numbers}
    timings = {number: tier for number, tier in by_tier.items() if tier is not None}
    costs = await cost_report(engine, since, until, tag=period.tag)
    return CostSection(
        sentences=_costs_in_words(costs, _strongest(catalog)),
        costs=costs,
        models={spec.number: spec.served_name for spec in catalog.tiers},
        timings=timings,
        all_timings=await answer_timings(engine, since, until),
        stages={number: recorded_stages(tier) for number, tier in timings.items()},
    )


def _strongest(catalog: Catalog) -> str:
    """Return the name of the strongest tier."""
    return catalog.tiers[-1].name


def _costs_in_words(costs: CostReport, strongest: str) -> list[str]:
    total, net = costs.total.spent, costs.total.net
    if not total.requests:
        return ["Nothing was spent in this period."]
    text = f"{total.requests:,} requests cost {dollars(net.paid_usd)}"
    if total.estimated_usd:
        text += f", {dollars(total.estimated_usd)} of it estimated"
    text += (
        f", and checks {dollars(net.checks_usd)}: verification {dollars(costs.verification_usd)}, test of the judge "
        f"{dollars(costs.judge_test_usd)}."
    )
    if net.share is None:
        return [text]
    verb = "saved" if net.saved_usd >= 0 else "cost more:"
    alone = f"All by {strongest} would have cost {dollars(net.strongest_usd)}"
    return [text, f"{alone}: after checks, routing {verb} {dollars(abs(net.saved_usd))}, {abs(net.share):.1%}."]


async def _quality(engine: AsyncEngine, catalog: Catalog, measured: _Measured) -> QualitySection:
    accepted, strongest = await acceptance(engine), len(catalog.tiers)
    sentences = [_verified_in_words(accepted.overall, _strongest(catalog))]
    return QualitySection(
        sentences=[*sentences, measured.problem] if measured.problem else sentences,
        overall=accepted.overall,
        tiers=_tiers(catalog, accepted, measured),
        kinds=await _kinds(engine, accepted),
        calibration=await reliability(engine, strongest),
        measured_at=None if measured.report is None else measured.report.measured_at,
    )


def _verified_in_words(overall: KindShare | None, strongest: str) -> str:
    if overall is None or overall.value is None:
        return "No answer has been verified yet, so how good the answers are is not measured."
    if overall.answers < ENOUGH_ANSWERS:
        return (
            f"How good the answers are is not known yet: {overall.answers:,} are verified, and it takes "
            f"{ENOUGH_ANSWERS - overall.answers} more."
        )
    return (
        f"By {overall.answers:,} verified answers, {overall.value:.1%} [{overall.low:.1%}, {overall.high:.1%}] of all "
        f"answers are no worse than {strongest}'s."
    )


def _tiers(catalog: Catalog, accepted: Acceptance, measured: _Measured) -> list[TierQuality]:
    by_tier = {} if measured.report is None else {tier.tier: tier for tier in measured.report.tiers}
    flags = {comparison.dearer: comparison for comparison in measured.overpriced}
    rows = []
    for spec in catalog.tiers:
        row = TierQuality(
            tier=spec.number,
            model=spec.served_name,
            input_usd_per_million=spec.price.input_usd_per_million,
            output_usd_per_million=spec.price.output_usd_per_million,
            price_estimated=spec.price.estimated,
            verified=None if spec is catalog.tiers[-1] else accepted.by_tier.get(spec.number),
            people=accepted.by_people.get(spec.number),
        )
        if (tier := by_tier.get(spec.number)) is not None:
            flag = flags.get(spec.number)
            row = msgspec.structs.replace(
                row,
                tasks=tier.accuracy,
                task_seconds=tier.mean_latency_seconds,
                task_usd=mean_cost_usd(tier, spec.price),
                not_better_than=None if flag is None else flag.cheaper,
                p_value=None if flag is None else flag.p_value,
            )
        rows.append(row)
    return rows


async def _kinds(engine: AsyncEngine, accepted: Acceptance) -> list[KindQuality]:
    """Return the kinds with verified answers, by tier below the strongest: all classes, and the applications with the
    most."""
    applications = [share.kind for share in accepted.by_kind if share.tier is None and share.kind.by == "application"]
    shown = set(applications[:MOST_APPLICATIONS])
    by_tier = [share for share in accepted.by_kind if share.tier is not None]
    shares = [share for share in by_tier if share.kind.by == "class"]
    shares += [share for share in by_tier if share.kind in shown]
    owners = await key_names(engine, [kind.key_id for kind in shown if kind.key_id is not None])
    return [KindQuality(name=kind_name(share.kind, owners), share=share) for share in shares]


async def _worth(engine: AsyncEngine, served: Served, period: Period, worth: WorthFound) -> WorthSection:
    observed = await observed_routing.observed_routing(engine, period.since, period.until)
    work = await finished_work(engine)
    sessions = await asyncio.to_thread(session_verdicts, work)
    names = served.catalog.tier_names
    by_key = [f"{key.name}: {routing_worth.in_words(key.worth, served.constant, names)}" for key in worth.keys]
    return WorthSection(
        sentences=[
            routing_worth.in_words(worth.catalogue, served.constant, names),
            *by_key,
            *observed_routing.in_words(observed),
            *(verdict.sentence for verdict in sessions),
        ],
        worth=worth,
        observed=observed,
        sessions=sessions,
    )


async def _help(
    engine: AsyncEngine,
    served: Served,
    previewed: float | None,
    worth: WorthFound,
    learning: Learning | None,
    overpriced: Sequence[TierComparison],
) -> HelpSection:
    missing = FIRST_PROBES if worth.catalogue is None else worth.catalogue.missing
    a_day = await _probes_a_day(engine, served, time.time()) if missing else 0.0
    targets = await read_targets(engine, served.mix, served.target, previewed)
    return HelpSection(
        sentences=[
            *([missing_in_words(missing, a_day, time.time())] if missing else []),
            *_learning_in_words(learning),
            *targets_in_words(targets, _strongest(served.catalog)),
            *(_overpriced_in_words(comparison, served.catalog.tier_names) for comparison in overpriced),
        ],
        missing_probes=missing,
        probes_a_day=round(a_day, 3),
        targets=targets,
        learning=learning,
    )


def missing_in_words(missing: int, a_day: float, now: float) -> str:
    """Return how many probes are missing and the day on which they are expected (`now`: epoch seconds)."""
    probes = "request that every tier answers" if missing == 1 else "requests that every tier answers"
    text = f"To know whether routing pays takes about {missing:,} more {probes} and a judge compares"
    if a_day <= 0:
        return f"{text}: none come while no requests do or verification is off, so no day is expected."
    days = math.ceil(missing / a_day)
    if days > _MOST_DAYS:
        return f"{text}: at the present pace that takes more than a year."
    day = time.strftime("%Y-%m-%d", time.gmtime(now + days * _DAY))
    return f"{text}: expected on {day}, at {a_day:.3g} a day."


def targets_in_words(targets: Targets, strongest: str) -> list[str]:
    """Return what the active and the previewed target are expected to come to, and by what."""
    basis = (
        f"by the predictions for the newest {targets.requests:,} requests"
        if targets.requests
        else "by what AIO ships with, for an even mix of the four classes at the catalogue's prices"
    )
    missing = ENOUGH_ANSWERS - targets.requests if targets.requests else 0
    sentences = []
    for name, point in (("The active", targets.active), ("A", targets.previewed)):
        if point is None:
            continue
        target = f"{name} quality target of {point.target:.1%}"
        if missing > 0:
            sentences.append(f"What to expect of {target.lower()} is not known yet: {missing} more requests.")
        else:
            sentences.append(
                f"{target} is expected to cost {point.cost_share:.1%} of {strongest} alone, with {point.no_worse:.1%} "
                f"of the answers no worse, {basis}."
            )
    return sentences


def _learning_in_words(learning: Learning | None) -> list[str]:
    if learning is None:
        return []
    if not learning.together.labels:
        return [
            "There are 0 labels: routing uses the general estimates that AIO ships with. Labels come from verified "
            "answers, feedback and aio outcomes import."
        ]
    everybody = [learning.together, *learning.keys] if len(learning.keys) > 1 else learning.keys
    return [in_words(learned) for learned in everybody]


def _overpriced_in_words(comparison: TierComparison, names: Mapping[int, str]) -> str:
    dearer, cheaper = (name_of_tier(number, names) for number in (comparison.dearer, comparison.cheaper))
    return (
        f"On the tasks of aio bench tiers, {dearer} costs more than {cheaper} and is not significantly better "
        f"(p = {comparison.p_value:.2g}): the catalogue may do without it."
    )


async def _probes_a_day(engine: AsyncEngine, served: Served, now: float) -> float:
    """Return how many probes come a day: those of the last week or, before the first, those that sampling expects of
    the last day's requests."""
    recent = training_rows.c.source == "probe", training_rows.c.created_at > now - _PACE_DAYS * _DAY
    async with engine.connect() as connection:
        counts = select(func.count(), func.min(training_rows.c.created_at)).where(*recent)
        count, first = (await connection.execute(counts)).one()
    if count:
        # Of less than a day nothing is known about the rest of it.
        return float(count) / max(float(now - first) / _DAY, 1.0)
    sampling = served.sampling
    if sampling is None:
        return 0.0
    spending = await VerificationQueue(engine, sampling, lease_seconds=0.0, max_attempts=1).spending(now)
    share = thinning(spending, sum(predicted_costs(served.catalog, PROMPT_TOKENS, None)), "probe", sampling)
    return sampling.probe_rate * share * sum(spending.answered.values())
