"""Does routing pay? The verdict, what routing costs, how good it is and what would help, as a page and for programs
(`GET /admin/api/report`); the quality target and the mode of routing, which that page changes.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from litestar import get, post
from litestar.di import Provide
from litestar.params import QueryParameter
from litestar.response import Response

from classifier.complexity.quality_setting import QUALITY_SETTINGS
from gateway.admin.knob_changes import order_knobs
from gateway.admin.resource import Admin, AsCsv, json_or_csv, names_of, target_of
from gateway.admin.traffic import SPAN_NAMES, cost_chart
from gateway.base.errors import bad_request
from gateway.base.numbers import MOST_EPOCH
from gateway.base.stores.database import reached
from gateway.edge.asgi import HttpRequest, Named
from gateway.operations.dashboard.html.charts import DASHES, Curve, Mark, Plane, Series, Timeline
from gateway.operations.dashboard.html.forms import fields_of, reason_of
from gateway.operations.dashboard.html.rendering import HEADERS, Page, back_to, page, tier_names
from gateway.operations.routing_report import gateway_report
from gateway.operations.running import Operations
from gateway.tenancy.admin_guard import OPERATOR
from quality.comparison.routing_worth import WorthVerdict
from quality.estimates.costs import USUAL_DAYS, CostReport, NetSaving, Part, Spent, first_second
from quality.estimates.traffic import SPANS, Span
from quality.estimates.verified_sample import ENOUGH_ANSWERS, ReliabilityBin
from quality.monitor.status import calibration_drift
from quality.routing_report import KindQuality, Period, RoutingReport
from tiers.catalog.catalog import name_of_tier

PATH = "/admin/routing"
TITLE = "Does routing pay?"
VERDICTS: Mapping[WorthVerdict, str] = {"pays": "Yes", "does_not_pay": "No", "not_known_yet": "Not known yet"}
MOST_DAYS = 366
PeriodSpan = Literal[Span, "30d"]
SPANS_SHOWN = (*SPAN_NAMES.items(), ("30d", "30 days"))
# How long the page waits for the learning curve; the next load shows it.
WAIT_SECONDS = 0.1
_DAY = 86_400
# Colours, none of which is a tier's.
_OWN, _MEASURED, _PREVIEWED, _ESTIMATE = "ink", "good", "warn", "quiet"
_COLUMNS = (
    "split",
    *(name for name in Part.__struct_fields__ if name not in ("spent", "net")),
    *Spent.__struct_fields__,
    *NetSaving.__struct_fields__,
)
_DONE = {
    "route": "Routing is on: its decisions hold from now on.",
    "observe": "Observe mode is on: one tier answers everything, and routing's decisions are recorded.",
}


EpochQuery = Annotated[float | None, QueryParameter(ge=0, le=MOST_EPOCH, description="Epoch seconds.")]
TagQuery = Annotated[
    str | None,
    QueryParameter(
        pattern=r"^[A-Za-z0-9._:-]{1,64}$",
        title="1 to 64 letters, digits, dots, colons, underscores and hyphens",
        description="A name in the requests' `metadata` by whose values costs are split too.",
    ),
]


def period_of(
    days: Annotated[int, QueryParameter(ge=1, le=MOST_DAYS, description="Days that end now.")] = USUAL_DAYS,
    span: Annotated[PeriodSpan | None, QueryParameter(description="How far back, in place of `days`.")] = None,
    since: EpochQuery = None,
    until: EpochQuery = None,
    tag: TagQuery = None,
    quality_target: Annotated[str, QueryParameter(description="Another target to look at: a number, or a name.")] = "",
) -> Period:
    """Return what a query asks about. Raises `ApiError` 400."""
    end = time.time() if until is None else until
    if since is not None:
        begin = since
    elif span is None or span == "30d":
        begin = max(first_second(days if span is None else USUAL_DAYS, end), 0.0)
    else:
        begin = max(end - SPANS[span][0], 0.0)
    if begin > end:
        raise bad_request(f"since {begin:g} is after until {end:g}.", "since", "invalid_value")
    return Period(since=begin, until=end, tag=tag, previewed=target_of(quality_target))


_PERIOD = {"period": Provide(period_of, sync_to_thread=False)}


@get("/report", dependencies=_PERIOD, summary="Show whether routing pays")
async def show_report(period: Named[Period], admin: Admin, as_csv: AsCsv) -> Response[RoutingReport]:
    """What it costs, how good it is, whether it pays, what would help. As CSV: a row for each part of each split of
    costs."""
    report = await reached(gateway_report(admin.operations, period))
    return json_or_csv(as_csv, "costs", report, _COLUMNS, _cost_rows(report.cost.costs))


def _cost_rows(costs: CostReport) -> Iterator[dict[str, Any]]:
    splits: dict[str, Sequence[Part | None]] = {
        "total": [costs.total],
        "tier": costs.by_tier,
        "model": costs.by_model,
        "day": costs.by_day,
        "key": [*costs.by_key, costs.other_keys],
        "team": costs.by_team,
        "tag": [*costs.by_tag, costs.other_tags],
    }
    for split, parts in splits.items():
        for part in parts:
            if part is not None:
                parts_of_row = (part, part.spent, part.net)
                yield {"split": split} | {k: v for row in parts_of_row for k, v in msgspec.structs.asdict(row).items()}


@get(["/spend", "/shadow"], status_code=301)
async def show_former_page(request: HttpRequest) -> Response[Any]:
    """Pages that became sections of this one."""
    section = {"/admin/spend": "cost", "/admin/shadow": "worth"}[request.scope["path"].rstrip("/")]
    return Response(None, status_code=301, headers={**HEADERS, "location": f"{PATH}#{section}"})


def _span_of(query: Mapping[str, str]) -> str:
    """Return the span that a query asks about; "" for a period of another kind."""
    if "since" in query or "until" in query:
        return ""
    return query.get("span", "" if "days" in query else "30d")


@get("/routing", dependencies=_PERIOD)
async def show_routing_page(request: HttpRequest, period: Named[Period], admin: Admin) -> Response[Any]:
    """Query: as for `/admin/api/report`."""
    span = _span_of(request.query_params)
    report = await reached(gateway_report(admin.operations, period, wait_seconds=WAIT_SECONDS))
    names = tier_names(admin.serving)
    routing, costs, help_ = admin.serving.routing, report.cost.costs, report.help
    tenths, worth = report.quality.calibration, report.worth.worth.catalogue
    drifts = await reached(calibration_drift(admin.database, list(range(1, routing.served.strongest))))
    keys = [part.name for part in (*costs.by_key, *costs.by_team)]
    return page(
        request,
        "routing.html",
        TITLE,
        report=report,
        verdict=VERDICTS["not_known_yet" if worth is None else worth.verdict],
        warning=_unexpected(report),
        enough=ENOUGH_ANSWERS,
        days=math.ceil((report.until - report.since) / _DAY),
        names=await names_of(admin.database, keys),
        settings=list(QUALITY_SETTINGS),
        knobs=routing.knobs.active,
        strongest=routing.served.strongest,
        answers=min(routing.knobs.active.observe_tier or routing.served.strongest, routing.served.strongest),
        target=(help_.targets.previewed or help_.targets.active).target,
        span=span,
        spans=SPANS_SHOWN,
        cost_lines=await _cost_lines(admin.operations, span, costs),
        tier_parts=_by_tier(costs, names),
        class_parts=[
            (name, count, f"p{k}") for k, (name, count) in enumerate(sorted(help_.targets.classes.items()), 1)
        ],
        kinds=_by_kind(report.quality.kinds),
        drifts=[drift for drift in drifts if drift.drifted],
        calibration_marks=[
            _calibration_mark(tenth, names) for tenth in tenths if tenth.no_worse.total >= ENOUGH_ANSWERS
        ],
        unknown_tenths=[(tenth, more) for tenth in tenths if (more := ENOUGH_ANSWERS - tenth.no_worse.total) > 0],
        diagonal=[Curve(name="as predicted", points=[(0.0, 0.0), (1.0, 1.0)], colour="quiet", dashes="4 4")],
        marks=_target_marks(report),
        **_target_curve(report),
        learned=_learned(report),
    )


@post("/routing/target", opt=OPERATOR, status_code=200)
async def apply_target(request: HttpRequest, admin: Admin) -> Response[Any]:
    """Apply a quality target permanently; `default` restores the server's own."""
    fields = await fields_of(request)
    target = None if "default" in fields else target_of(fields.get("quality_target", ""))
    if target is None and "default" not in fields:
        raise bad_request("Give a quality_target from 0 to 1.", "quality_target", "invalid_value")
    now = "the server's own" if target is None else f"{target:g}"
    notice = f"The quality target is now {now}."
    return await _change_knob(admin.operations, admin.actor, fields, {"quality_target": target}, notice)


@post("/routing/mode", status_code=200)
async def switch_mode(request: HttpRequest, admin: Admin) -> Response[Any]:
    """Switch routing on, or observe it; permanent, for admins only."""
    fields = await fields_of(request)
    mode = fields.get("mode", "")
    if mode not in _DONE:
        raise bad_request(f"Invalid mode: {mode[:64]!r}; allowed: {', '.join(_DONE)}.", "mode", "invalid_value")
    return await _change_knob(admin.operations, admin.actor, fields, {"mode": mode}, _DONE[mode])


async def _change_knob(
    operations: Operations, actor: str, fields: dict[str, str], change: dict[str, Any], notice: str
) -> Response[Any]:
    knobs, reason = operations.serving.routing.knobs, reason_of(fields)
    done = await order_knobs(operations, actor, knobs, change, reason)
    if not done.changed:
        return back_to(PATH, "Nothing changed: it is as it was.")
    late = "" if done.recorded else " The database is down: the change is recorded later."
    return back_to(PATH, f"{notice}{late}")


def _by_tier(costs: CostReport, names: Mapping[int, str]) -> list[tuple[str, int, int]]:
    """Return name, requests and colour of each tier."""
    numbers = [(int(part.name), part.spent) for part in costs.by_tier if part.name and part.name.isdigit()]
    return [(name_of_tier(number, names), spent.requests, number) for number, spent in numbers]


async def _cost_lines(operations: Operations, span: str, costs: CostReport) -> Timeline | None:
    """Return the chart of costs: of a short span as the overview has it, else by day; None where it has one point."""
    if span in SPANS:
        traffic = await operations.live.traffic.look(span)
        return None if traffic is None else cost_chart(traffic)
    lines = _by_day(costs)
    return lines if len(lines.times) > 1 else None


def _by_day(costs: CostReport) -> Timeline:
    """Return a line of what was paid and one of what the strongest tier alone would have cost."""
    spent = {part.name: part.spent for part in costs.by_day}
    days = range(int(costs.since // _DAY), int(costs.until // _DAY) + 1)
    of_days = [spent.get(time.strftime("%Y-%m-%d", time.gmtime(day * _DAY)), Spent()) for day in days]
    return Timeline(
        title="Cost per day",
        times=[float(day * _DAY) for day in days],
        series=[
            Series(name="paid", values=[day.cost_usd for day in of_days], colour="ink"),
            Series(
                name="by the strongest tier alone",
                values=[day.baseline_usd for day in of_days],
                colour="quiet",
                dashes=DASHES[2],
            ),
        ],
        format="usd",
    )


def _unexpected(report: RoutingReport) -> str:
    """Say that the quality expected of the active target is not what was verified; "" where it may be."""
    targets, verified = report.help.targets, report.quality.overall
    expected = targets.active.no_worse
    if not targets.requests or verified is None or verified.value is None or verified.answers < ENOUGH_ANSWERS:
        return ""
    if verified.low <= expected <= verified.high:
        return ""
    return (
        f"{expected:.1%} expected at the active target, by {targets.requests:,} requests; {verified.value:.1%} "
        f"[{verified.low:.1%}, {verified.high:.1%}] verified as good, of {verified.answers:,} answers."
    )


def _target_curve(report: RoutingReport) -> dict[str, Any]:
    """Return the curve of all targets, and a plane from a tenth below its least quality up to 1."""
    points = report.help.targets.points
    least = min(point.no_worse for point in points)
    line = [(point.cost_share, point.no_worse) for point in points]
    return {
        "plane": Plane(y=(max(int(least * 10) / 10, 0.0) if least < 1 else 0.9, 1.0)),
        "curves": [Curve(name="expected at every target", points=line, colour=_ESTIMATE, dashes="2 4")],
    }


def _target_marks(report: RoutingReport) -> list[Mark]:
    """Return the active and the previewed target on the curve, and what was measured of the active one by probes."""
    targets, worth = report.help.targets, report.worth.worth.catalogue
    places = [("the active target", targets.active, _OWN), ("as previewed", targets.previewed, _PREVIEWED)]
    marks = [
        Mark(name=name, x=point.cost_share, y=point.no_worse, colour=colour)
        for name, point, colour in places
        if point is not None
    ]
    if worth is not None and worth.tiers[-1].usd > 0:
        share = worth.usd / worth.tiers[-1].usd
        marks.append(Mark(name=f"measured, {worth.probes:,} probes", x=share, y=worth.no_worse, colour=_MEASURED))
    return marks


def _calibration_mark(tenth: ReliabilityBin, names: Mapping[int, str]) -> Mark:
    share = tenth.no_worse
    name = f"{name_of_tier(tenth.tier, names)}, {share.count} of {share.total}"
    return Mark(name=name, x=tenth.predicted, y=share.value or 0.0, colour=tenth.tier, low=share.low, high=share.high)


def _by_kind(kinds: Sequence[KindQuality]) -> dict[str, dict[int, KindQuality]]:
    """Return the shares of each kind by tier."""
    by_kind: dict[str, dict[int, KindQuality]] = {}
    for kind in kinds:
        by_kind.setdefault(kind.name, {})[kind.share.tier or 0] = kind
    return by_kind


def _learned(report: RoutingReport) -> list[Any]:
    """Return what was learned by key, and of all keys where there are several."""
    learning = report.help.learning
    if learning is None:
        return []
    return [learning.together, *learning.keys] if len(learning.keys) > 1 else learning.keys


ROUTING_PAGE = Page(
    title=TITLE,
    path="/routing",
    handlers=(show_routing_page, apply_target, switch_mode, show_former_page),
)
