"""What routing comes to, under `/admin/api/routing/…`: cost against quality, kinds of prompts, traffic, tiers
compared, and what another quality target would do: recent decisions made again by the policy, with everything else as
it was. And what routing knew of each tier when it decided, and in words why it chose another one.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
import numpy as np
from litestar import get
from litestar.response import Response

from classifier.complexity.classes import Complexity
from classifier.complexity.quality_setting import QUALITY_SETTINGS
from classifier.decision import Decision, PolicyInputs
from classifier.policy.decide import barred_tiers, held_back
from gateway.admin.resource import json_or_csv
from gateway.base.errors import ApiError
from gateway.base.numbers import number
from gateway.base.stores.database import reached
from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe, endpoint
from gateway.inference.classifier_versions import (
    ActiveClassifier,
    LoadedVersion,
    RoutingRule,
    choice_at,
    rule_of,
)
from gateway.inference.service import Serving, serving_of
from gateway.operations.running import Operations, operations_of
from quality.estimates.traffic import (
    ClassTraffic,
    RoutedRequest,
    Traffic,
    decided_or_watched,
    expected_in_words,
    in_words,
    newest_requests,
    stored_labels,
    traffic,
)
from quality.estimates.verified_sample import (
    Acceptance,
    Kind,
    KindShare,
    ReliabilityBin,
    Share,
    acceptance,
    reliability,
)
from quality.evaluation.tier_accuracy import (
    ReportFileError,
    compare_tiers,
    mean_cost_usd,
    overpriced_tiers,
    stored_report,
)
from quality.learning.kind_names import plain_name


class OperatingPoint(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule comes to on the requests."""

    quality_target: float
    tau: float
    split: list[float]
    """Shares of the requests by tier."""
    cost_usd: float
    """Cost of a request, at the tokens that were used."""
    cost_share: float
    """Cost as a share of what the strongest tier alone would cost."""
    no_worse: float
    """The share of answers expected to be no worse than the strongest tier's."""


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """What another target would change. Times are epoch seconds, of the oldest and the newest request.

    Every request counts as if it left the target to the server; those that brought one of their own will keep it.
    """

    since: float
    until: float
    requests: int
    moved: float
    """The share of the `requests` that another tier would answer. Times in epoch seconds: of the oldest and the newest.
    """
    now: OperatingPoint
    """Figures at the current target."""
    then: OperatingPoint
    """Figures at the target asked about."""


_inputs = msgspec.json.Decoder(PolicyInputs).decode


def preview(routed: Sequence[RoutedRequest], now: RoutingRule, then: RoutingRule) -> Preview | None:
    """Both rules on requests of one ladder, newest first; None of none. Pure, some 50 µs a request."""
    decided = [(one, inputs) for one in routed if (inputs := inputs_of(one)) is not None]
    if not decided:
        return None
    costs = np.array([_costs(one) for one, _ in decided])
    p_ok = np.array([inputs.prediction.p_ok for _, inputs in decided])
    # A set, because the page that previews nothing in particular gives the same rule twice.
    chosen = {rule: np.array([choice_at(inputs, rule) for _, inputs in decided]) - 1 for rule in {now, then}}
    strongest = float(np.mean([one.strongest_usd for one, _ in decided]))
    points = {rule: _point(costs, p_ok, strongest, taken, rule) for rule, taken in chosen.items()}
    return Preview(
        since=decided[-1][0].created_at,
        until=decided[0][0].created_at,
        requests=len(decided),
        moved=float(np.mean(chosen[now] != chosen[then])),
        now=points[now],
        then=points[then],
    )


def inputs_of(one: RoutedRequest) -> PolicyInputs | None:
    """Decode the inputs; None where another version of this program wrote them and they cannot be read."""
    try:
        return _inputs(one.inputs)
    except msgspec.ValidationError:
        return None


def _costs(one: RoutedRequest) -> list[float]:
    """Return what each tier would have cost: what was paid for the one that answered, and for the others as predicted,
    scaled from the tokens that the strongest was expected to use to those that were used."""
    scale = one.strongest_usd / one.costs[-1] if one.costs[-1] else 1.0
    return [one.paid_usd if tier == one.tier else cost * scale for tier, cost in enumerate(one.costs, start=1)]


def _point(
    costs: np.ndarray, p_ok: np.ndarray, strongest: float, chosen: np.ndarray, rule: RoutingRule
) -> OperatingPoint:
    each = np.arange(len(chosen))
    paid = float(costs[each, chosen].mean())
    return OperatingPoint(
        quality_target=rule.quality_target,
        tau=rule.tau,
        split=(np.bincount(chosen, minlength=costs.shape[1]) / len(chosen)).tolist(),
        cost_usd=paid,
        cost_share=paid / strongest if strongest else 1.0,
        no_worse=float(p_ok[each, chosen].mean()),
    )


# Applications shown: those with the most verified answers.
_APPLICATIONS = 8


class CurveRow(msgspec.Struct, frozen=True, kw_only=True):
    """A point of the curve at one `threshold` of P(good enough)."""

    threshold: float
    no_worse: float
    cost_share: float
    """Cost relative to always asking the strongest tier, at reference prices."""


class CurveShown(msgspec.Struct, frozen=True, kw_only=True):
    """The serving `version`'s curve on `probes`, and the active target's point on it; None without probes."""

    version: str
    probes: int
    active: RoutingRule = msgspec.field(name="in_force")
    no_worse: float | None
    cost_share: float | None
    points: list[CurveRow]


class KindRow(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of prompts at a tier below the strongest. A kind is a complexity class or an application: a key with a
    system prompt.
    """

    name: str
    """The kind in words."""
    by: str
    complexity: str | None
    key_id: str | None
    app: str
    """Hash of the system prompt."""
    tier: int
    answers: int = 0
    """Number of verified answers."""
    no_worse: float | None = None
    low: float = 0.0
    high: float = 1.0


class KindsShown(msgspec.Struct, frozen=True, kw_only=True):
    """The classes, then the applications with the most verified answers; by tier."""

    rows: list[KindRow]


class TrafficShown(msgspec.Struct, frozen=True, kw_only=True):
    """The newest requests, with a summary."""

    traffic: Traffic
    sentences: list[str]
    labels: int
    """How many prompts have labels."""
    verified: KindShare | None
    """The share of answers as good as the strongest tier's, by a sample; None without one."""


class TierRow(msgspec.Struct, frozen=True, kw_only=True):
    """A tier's price in US dollars per million tokens, and the results of `aio bench tiers`, if it ran: tasks right,
    and mean seconds and US dollars per task.
    """

    tier: int
    name: str
    model: str
    input_usd_per_million: float
    output_usd_per_million: float
    accuracy: Share | None = None
    seconds: float | None = None
    cost_usd: float | None = None
    not_better_than: int | None = None
    """The cheapest tier that it does not significantly beat."""
    p_value: float | None = None
    accepted: Share | None = None
    """The share of its verified live answers that are no worse than the strongest tier's."""
    price_estimated: str = ""
    """The source of an estimated price (size, seconds or order); else empty."""


class TiersCompared(msgspec.Struct, frozen=True, kw_only=True):
    """The tiers of the catalogue side by side."""

    measured_at: datetime | None
    """None without a measurement."""
    tasks: int
    problem: str
    """Why a measurement cannot be read."""
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
    """Preview the target `wanted` (None: the active) on the requests of `traffic_shown`. Raises `ApiError` 503."""
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
    """Return the rule of the active version, or of the heuristic without one, at a target; None: the version's own."""
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


class ReliabilityShown(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted against verified, of the newest verdicts."""

    bins: list[ReliabilityBin]


class PreviewShown(msgspec.Struct, frozen=True, kw_only=True):
    """None if nothing was routed."""

    preview: Preview | None


@get("/routing/curve", operation_class=describe(None, CurveShown), summary="Show the cost-quality curve")
async def show_curve(request: HttpRequest) -> Response[Any]:
    """The serving version's curve on probes, if there are any. 409 without a classifier. `format`: json or csv."""
    shown = await curve_shown(operations_of(request))
    return json_or_csv(request, "curve", shown, CurveRow.__struct_fields__, shown.points)


@get("/routing/preview", operation_class=describe(None, PreviewShown), summary="Preview another quality target")
async def show_preview(request: HttpRequest) -> Response[Any]:
    """The effect of `quality_target` (0 to 1; empty is the active one) on the newest requests; nothing changes.
    `format`: json or csv."""
    wanted = target_of(request.query_params.get("quality_target", ""))
    shown = PreviewShown(preview=await preview_of(serving_of(request), wanted))
    rows = [] if shown.preview is None else [shown.preview.now, shown.preview.then]
    return json_or_csv(request, "preview", shown, OperatingPoint.__struct_fields__, rows)


@endpoint(get, "/routing/reliability", None, ReliabilityShown, "Show calibration on live traffic")
async def show_reliability(request: HttpRequest) -> Response[Any]:
    """By tier and tenth of the predicted P(no worse). `format`: json or csv."""
    serving = serving_of(request)
    shown = ReliabilityShown(bins=await reached(reliability(serving.database, serving.routing.served.strongest)))
    return json_or_csv(request, "reliability", shown, ReliabilityBin.__struct_fields__, shown.bins)


@get("/routing/kinds", operation_class=describe(None, KindsShown), summary="Show kinds of prompts")
async def show_kinds(request: HttpRequest) -> Response[Any]:
    """How good each tier is for each kind, by verified answers. `format`: json or csv."""
    operations = operations_of(request)
    shown = await kinds_shown(operations, await reached(acceptance(operations.serving.database)))
    return json_or_csv(request, "kinds", shown, KindRow.__struct_fields__, shown.rows)


@get("/routing/traffic", operation_class=describe(None, TrafficShown), summary="Show the traffic and its cost")
async def show_traffic(request: HttpRequest) -> Response[Any]:
    """Classes of the newest requests, which tiers answered them, saving, expected quality. `format`: json, or csv for
    the classes."""
    serving = serving_of(request)
    shown = await traffic_shown(serving, await reached(acceptance(serving.database)))
    return json_or_csv(request, "traffic", shown, ClassTraffic.__struct_fields__, shown.traffic.classes)


@get("/routing/tiers", operation_class=describe(None, TiersCompared), summary="Compare the tiers")
async def show_tiers(request: HttpRequest) -> Response[Any]:
    """Accuracy, price and latency, and tiers that are not worth their price. `format`: json or csv."""
    serving = serving_of(request)
    shown = await tiers_compared(serving, await reached(acceptance(serving.database)))
    return json_or_csv(request, "tiers", shown, TierRow.__struct_fields__, shown.tiers)


ROUTING_ENDPOINTS = (show_curve, show_preview, show_reliability, show_kinds, show_traffic, show_tiers)


class TierChance(msgspec.Struct, frozen=True, kw_only=True):
    """What routing knew of a tier: P(no worse), predicted cost and score."""

    tier: int
    p_ok: float
    cost_usd: float
    predicted_tokens: float | None
    score: float | None
    ruled_out: str | None
    """Why another tier was chosen, in words; None for the chosen one."""


def chances_of(decision: Decision) -> list[TierChance]:
    """Return what routing knew, by tier."""
    inputs = decision.inputs
    prediction, barred = inputs.prediction, barred_tiers(inputs)
    reasons = barred | held_back(inputs, [k for k in range(1, len(inputs.costs) + 1) if k not in barred])
    return [
        TierChance(
            tier=number,
            p_ok=prediction.p_ok[number - 1],
            cost_usd=cost,
            predicted_tokens=prediction.predicted_tokens[number - 1] if prediction.predicted_tokens else None,
            score=decision.scores[number - 1],
            ruled_out=None if number == decision.tier else reasons.get(number) or _why_not(decision, number),
        )
        for number, cost in enumerate(inputs.costs, start=1)
    ]


def _why_not(decision: Decision, tier: int) -> str:
    """Why a tier that may answer was not chosen."""
    inputs, chosen = decision.inputs, decision.tier
    by_rule = decision.tier if decision.would_be is None else decision.would_be
    if decision.would_be is not None and by_rule != chosen:
        if tier == by_rule:
            return f"routing is only observed, and tier {chosen} answers"
        return f"routing is only observed; it would have chosen tier {by_rule}"
    if inputs.rules is not None and inputs.rules.tier == chosen:
        return f"a rule gives it to tier {chosen}"
    if inputs.edge is not None and inputs.edge.tier == chosen:
        return f"short prompts go to tier {chosen} without the classifier"
    if inputs.arm_tier == chosen:
        return f"arm {inputs.arm} of the experiment is given tier {chosen}"
    p_ok = inputs.prediction.p_ok[tier - 1]
    if inputs.objective == "utility":
        theirs, ours = decision.scores[tier - 1], decision.scores[chosen - 1]
        return "" if theirs is None or ours is None else f"worth {theirs:.3f}, tier {chosen} {ours:.3f}"
    if p_ok < inputs.tau:
        what = "P(good enough)" if inputs.prediction.classes else "P(no worse)"
        return f"{what} {p_ok:.3f} is below {inputs.tau:.3f}"
    return f"good enough too, but no cheaper than tier {chosen}"
