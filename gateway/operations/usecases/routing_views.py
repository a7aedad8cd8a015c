"""What routing comes to: cost against quality, another target's effect, kinds of prompts, traffic, tiers compared."""

import asyncio
from collections import Counter
from datetime import datetime

import msgspec
import numpy as np

from classifier.complexity.classes import Complexity
from classifier.complexity.quality_setting import QUALITY_SETTINGS
from gateway.base.errors import ApiError
from gateway.base.numbers import number
from gateway.base.stores.database import reached
from gateway.inference.routing.classifier_versions import ActiveClassifier, LoadedVersion, RoutingRule, rule_of
from gateway.inference.service import Serving
from gateway.operations.running import Operations
from gateway.operations.usecases.target_preview import Preview, preview
from quality.estimates.kinds import Acceptance, Kind, KindShare
from quality.estimates.traffic import (
    Traffic,
    decided_or_watched,
    expected_in_words,
    in_words,
    newest_requests,
    stored_labels,
    traffic,
)
from quality.estimates.upgrade_rate import Share
from quality.evaluation.tier_value import ReportFileError, compare_tiers, mean_cost_usd, overpriced_tiers, stored_report
from quality.learning.kind_names import plain_name

# Applications shown: those with the most verified answers.
_APPLICATIONS = 8


class CurveRow(msgspec.Struct, frozen=True, kw_only=True):
    """A point of the curve at one `threshold` of P(good enough). `cost_share`: relative to always asking the strongest
    tier, at reference prices."""

    threshold: float
    no_worse: float
    cost_share: float


class CurveShown(msgspec.Struct, frozen=True, kw_only=True):
    """The serving `version`'s curve on `probes`, and the active target's point on it; None without probes."""

    version: str
    probes: int
    active: RoutingRule = msgspec.field(name="in_force")
    no_worse: float | None
    cost_share: float | None
    points: list[CurveRow]


class KindRow(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of prompts at a tier below the strongest. `name` in words; a kind is a complexity class or an application:
    a key with a system prompt (`app`, its hash). `answers` were verified; the rest as in the estimates."""

    name: str
    by: str
    complexity: str | None
    key_id: str | None
    app: str
    tier: int
    answers: int = 0
    no_worse: float | None = None
    low: float = 0.0
    high: float = 1.0


class KindsShown(msgspec.Struct, frozen=True, kw_only=True):
    """The classes, then the applications with the most verified answers; by tier."""

    rows: list[KindRow]


class TrafficShown(msgspec.Struct, frozen=True, kw_only=True):
    """The newest requests, with a summary. `labels`: how many prompts have labels; `verified`: the share of answers as
    good as the strongest tier's, by a sample; None without one."""

    traffic: Traffic
    sentences: list[str]
    labels: int
    verified: KindShare | None


class TierRow(msgspec.Struct, frozen=True, kw_only=True):
    """A tier's price in US dollars per million tokens, and the results of `aio bench tiers`, if it ran: tasks right,
    and mean seconds and US dollars per task. `not_better_than`: the cheapest tier that it does not significantly beat.
    `accepted`: of its verified live answers, those no worse than the strongest tier's. `price_estimated`: the source of
    an estimated price (size, seconds or order); else empty."""

    tier: int
    name: str
    model: str
    input_usd_per_million: float
    output_usd_per_million: float
    accuracy: Share | None = None
    seconds: float | None = None
    cost_usd: float | None = None
    not_better_than: int | None = None
    p_value: float | None = None
    accepted: Share | None = None
    price_estimated: str = ""


class TiersCompared(msgspec.Struct, frozen=True, kw_only=True):
    """`measured_at` is None without a measurement; `problem` says why a measurement cannot be read."""

    measured_at: datetime | None
    tasks: int
    problem: str
    tiers: list[TierRow]


def active_version(serving: Serving) -> LoadedVersion:
    """Return the serving version. Raises `ApiError` 409 without one."""
    classifier = serving.routing.classifier
    versions = classifier.serving_or_none if isinstance(classifier, ActiveClassifier) else None
    if versions is None:
        raise ApiError(409, "This server has no active classifier of its own.", code="classifier_off")
    return versions.current


async def curve_shown(operations: Operations) -> CurveShown:
    """Return the curve with its operating point. Raises `ApiError` 409 and 503."""
    serving = operations.serving
    version, rule = active_version(serving), rule_at(serving, serving.routing.active_target)
    drawn = await reached(operations.cost_quality_curves.of(version.version, version.table))
    at = [point.threshold for point in drawn.points]
    no_worse, cost_share = ([getattr(point, name) for point in drawn.points] for name in ("no_worse", "cost_share"))
    return CurveShown(
        version=version.version,
        probes=drawn.probes,
        active=rule,
        no_worse=float(np.interp(rule.quality_target, at, no_worse)) if at else None,
        cost_share=float(np.interp(rule.quality_target, at, cost_share)) if at else None,
        points=[
            CurveRow(threshold=point.threshold, no_worse=point.no_worse, cost_share=point.cost_share)
            for point in drawn.points
        ],
    )


async def preview_of(serving: Serving, wanted: float | None) -> Preview | None:
    """Preview the target `wanted` on the requests that `traffic_shown` sums up; None is the active one. Raises
    `ApiError` 503."""
    now = serving.routing.active_target
    rules = rule_at(serving, now), rule_at(serving, now if wanted is None else wanted)
    routed = decided_or_watched(await reached(newest_requests(serving.database)))
    ladder = routed and len(routed[0].costs) == serving.routing.served.strongest
    return await asyncio.to_thread(preview, routed, *rules) if ladder else None


def target_of(text: str) -> float | None:
    """Parse a quality target of a form or query, by number or name; "" is none. Raises `ApiError` 400."""
    if not (text := text.strip()):
        return None
    if text in QUALITY_SETTINGS:
        return QUALITY_SETTINGS[text]
    return number(text, "quality_target", 0, 1, f", or one of {', '.join(QUALITY_SETTINGS)}")


def rule_at(serving: Serving, target: float | None) -> RoutingRule:
    """Return the rule of the active version, or of the heuristic without one, at a target; None is the version's
    own."""
    return rule_of(serving.routing.classifier, "", target)


async def kinds_shown(operations: Operations, accepted: Acceptance) -> KindsShown:
    """Return the verified answers of each kind. Raises `ApiError` 503."""
    names = await reached(operations.kind_names.now())
    live = {(one.tier, one.kind): one for one in accepted.by_kind}
    kinds: list[Kind] = [Kind(by="class", complexity=complexity) for complexity in Complexity]
    kinds += [one.kind for one in accepted.by_kind if one.tier is None and one.kind.by == "application"][:_APPLICATIONS]
    rows, named = [], Counter[str]()
    for kind in kinds:
        name = names.get(kind) or plain_name(kind)
        named[name] += 1
        # Applications without stored texts cannot be distinguished.
        rows += [
            _kind_row(kind, name if named[name] == 1 else f"{name} (another one, {named[name]})", tier, live)
            for tier in range(1, operations.serving.routing.served.strongest)
        ]
    return KindsShown(rows=rows)


async def traffic_shown(serving: Serving, accepted: Acceptance) -> TrafficShown:
    """Summarise the newest requests. Raises `ApiError` 503."""
    seen = traffic(await reached(newest_requests(serving.database)))
    labels, verified = await reached(stored_labels(serving.database)), accepted.overall
    sentences = in_words(seen)
    if seen.requests:
        sentences.append(expected_in_words(seen, labels, verified))
    return TrafficShown(traffic=seen, sentences=sentences, labels=labels, verified=verified)


async def tiers_compared(serving: Serving, accepted: Acceptance) -> TiersCompared:
    """Return the catalogue's tiers, with their stored measurement."""
    catalog, problem = serving.routing.served.catalog, ""
    report = None
    try:
        report = await asyncio.to_thread(stored_report, serving.settings.data_path, catalog)
    except ReportFileError as error:
        problem = str(error)
    measured = {} if report is None else {one.tier: one for one in report.tiers}
    flagged = {} if report is None else {one.dearer: one for one in overpriced_tiers(compare_tiers(report, catalog))}
    rows = []
    for spec in catalog.tiers:
        one, flag = measured.get(spec.number), flagged.get(spec.number)
        rows.append(
            TierRow(
                tier=spec.number,
                name=spec.name,
                model=spec.served_name,
                input_usd_per_million=spec.price.input_usd_per_million,
                output_usd_per_million=spec.price.output_usd_per_million,
                accuracy=None if one is None else one.accuracy,
                seconds=None if one is None else one.mean_latency_seconds,
                cost_usd=None if one is None else mean_cost_usd(one, spec.price),
                not_better_than=None if flag is None else flag.cheaper,
                p_value=None if flag is None else flag.p_value,
                accepted=accepted.by_tier.get(spec.number),
                price_estimated=spec.price.estimated,
            )
        )
    return TiersCompared(
        measured_at=None if report is None else report.measured_at,
        tasks=0 if report is None else report.tiers[0].accuracy.total,
        problem=problem,
        tiers=rows,
    )


def _kind_row(kind: Kind, name: str, tier: int, live: dict[tuple[int | None, Kind], KindShare]) -> KindRow:
    complexity = None if kind.complexity is None else kind.complexity.name
    row = KindRow(name=name, by=kind.by, complexity=complexity, key_id=kind.key_id, app=kind.app, tier=tier)
    if (one := live.get((tier, kind))) is None:
        return row
    return msgspec.structs.replace(row, answers=one.answers, no_worse=one.value, low=one.low, high=one.high)
