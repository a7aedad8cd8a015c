"""The routing page: cost against quality, the effect of another target before it is applied, and tier reliability; and
what routing would have saved while it was observed, and how good it would have been: `GET /admin/api/shadow` and the
page with the worst cases and the switch.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from litestar import get, post
from litestar.response import Response

from classifier.complexity.quality_setting import QUALITY_SETTINGS
from gateway.admin.first_day import FirstDay, first_day
from gateway.admin.knob_changes import order_knobs
from gateway.admin.resource import json_or_csv, none_if_off, time_asked
from gateway.admin.routing_reports import (
    CurveRow,
    CurveShown,
    KindRow,
    KindsShown,
    Preview,
    TiersCompared,
    TrafficShown,
    curve_shown,
    kinds_shown,
    preview_of,
    rule_at,
    target_of,
    tiers_compared,
    traffic_shown,
)
from gateway.base.errors import bad_request
from gateway.base.numbers import whole_number
from gateway.base.stores.database import reached
from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.inference.service import Serving, serving_of
from gateway.operations.dashboard.html.charts import Curve, Mark, Plane
from gateway.operations.dashboard.html.forms import fields_of, reason_of
from gateway.operations.dashboard.html.rendering import Page, back_to, page
from gateway.operations.quality_loop.quality_loop import sampling_settings
from gateway.operations.running import Operations, operations_of
from gateway.tenancy.admin_guard import OPERATOR, actor_of
from quality.comparison.shadow_answers import NEWEST, ShadowCase
from quality.comparison.shadow_report import ShadowReport, budget_now, shadow_report
from quality.estimates.verified_sample import ReliabilityBin, acceptance, reliability

# More would take longer than a page may: aio report shadow has no such bound.
_MOST = 20_000


async def shadow_shown(serving: Serving, query: Mapping[str, str]) -> ShadowReport:
    """Return the report that `query` asks for with `since` and `last`. Raises `ApiError` 400 and 503."""
    since = time_asked(query, "since", 0.0)
    last = whole_number(query.get("last", str(NEWEST)), "last", 1, _MOST)
    sampling = sampling_settings(serving.settings, serving.routing.served.catalog)
    budget = await reached(budget_now(serving.database, sampling, time.time()))
    return await reached(shadow_report(serving.database, budget, since, last))


# Users' texts are left out of tables.
_COLUMNS = tuple(
    name
    for name in ShadowCase.__struct_fields__
    if name not in ("messages", "given_answer", "would_be_answer", "reason")
)


@get("/shadow", operation_class=describe(None, ShadowReport), summary="Show what routing would save")
async def show_shadow(request: HttpRequest) -> Response[Any]:
    """Of the newest requests answered in observe mode. Query: `since` in epoch seconds; `last`, at most so many
    requests, by default 5,000; `format`, json, or csv for the worst cases without texts."""
    shown = await shadow_shown(serving_of(request), request.query_params)
    return json_or_csv(request, "shadow", shown, _COLUMNS, shown.cases)


ROUTING_PATH = "/admin/routing"
# Numbers of colours.
_OWN, _PREVIEWED, _PROBES, _ESTIMATE = 1, 3, 4, 5


@get("/routing")
async def show_routing_page(request: HttpRequest) -> Response[Any]:
    """Query: `quality_target`, to preview it on the newest requests."""
    operations = operations_of(request)
    wanted = target_of(request.query_params.get("quality_target", ""))
    previewed, curve, bins, (kinds, compared, seen) = await asyncio.gather(
        preview_of(operations.serving, wanted),
        none_if_off(curve_shown(operations)),
        reached(reliability(operations.serving.database, operations.serving.routing.served.strongest)),
        _verified(operations),
    )
    active = rule_at(operations.serving, operations.serving.routing.active_target)
    first = None if curve is None else await first_day(operations, wanted, curve.probes)
    return page(
        request,
        "routing.html",
        "Routing",
        active=active,
        settings=list(QUALITY_SETTINGS),
        knobs=operations.serving.routing.knobs.active,
        wanted=active.quality_target if wanted is None else wanted,
        asked=wanted is not None,
        preview=previewed,
        curve=curve,
        first=first,
        **_plane_of(curve, first, previewed, wanted is not None),
        bins=bins,
        bin_marks=[_mark(one) for one in bins],
        diagonal=[Curve(name="as predicted", points=[(0.0, 0.0), (1.0, 1.0)], colour=5, dashes="4 4")],
        kinds=_by_kind(kinds),
        traffic=seen.traffic,
        sentences=seen.sentences,
        tier_parts=[(f"Tier {k}", count, k) for k, count in enumerate(seen.traffic.tiers, start=1)],
        class_parts=[(one.name, one.requests, k) for k, one in enumerate(seen.traffic.classes, start=1)],
        class_looks={row.complexity: row.name.partition(": ")[2] for row in kinds.rows if row.complexity},
        compared=compared,
        judged=range(1, operations.serving.routing.served.strongest),
    )


@post("/routing/target", opt=OPERATOR, status_code=200)
async def apply_target(request: HttpRequest) -> Response[Any]:
    """Apply a quality target permanently; `default` restores the server's own."""
    fields = await fields_of(request)
    target = None if "default" in fields else target_of(fields.get("quality_target", ""))
    if target is None and "default" not in fields:
        raise bad_request("Give a quality_target from 0 to 1.", "quality_target", "invalid_value")
    reason = reason_of(fields)
    operations, wanted = operations_of(request), {"quality_target": target}
    done = await order_knobs(operations, actor_of(request), operations.serving.routing.knobs, wanted, reason)
    if not done.changed:
        return back_to(ROUTING_PATH, "Nothing changed: the target is the same.")
    said = "the server's own" if target is None else f"{target:g}"
    late = "" if done.recorded else " The database is down: the change is recorded later."
    return back_to(ROUTING_PATH, f"The quality target is now {said}.{late}")


async def _verified(operations: Operations) -> tuple[KindsShown, TiersCompared, TrafficShown]:
    accepted = await reached(acceptance(operations.serving.database))
    return await asyncio.gather(
        kinds_shown(operations, accepted),
        tiers_compared(operations.serving, accepted),
        traffic_shown(operations.serving, accepted),
    )


def _plane_of(curve: CurveShown | None, first: FirstDay | None, preview: Preview | None, asked: bool) -> dict[str, Any]:
    """Return the curve on probes or, before the first of them, the estimate, with its marks and the plane for both."""
    if curve is None or first is None:
        return {"plane": Plane(), "curves": [], "marks": []}
    if not curve.points:
        estimate = first.estimate
        marks = [_mark_at("the active target", estimate.now, _OWN)]
        marks += [_mark_at("as previewed", estimate.then, _PREVIEWED)] if asked else []
        return _drawn("estimate", _ESTIMATE, "2 4", estimate.points, marks)
    return _drawn("probes", _PROBES, "6 4", curve.points, _marks(curve, preview, asked))


def _drawn(name: str, colour: int, dashes: str, points: Sequence[CurveRow], marks: list[Mark]) -> dict[str, Any]:
    """The plane reaches from a tenth below the curve's least quality up to 1."""
    least = min(point.no_worse for point in points)
    line = [(point.cost_share, point.no_worse) for point in points]
    return {
        "plane": Plane(y=(max(int(least * 10) / 10, 0.0) if least < 1 else 0.9, 1.0)),
        "curves": [Curve(name=name, points=line, colour=colour, dashes=dashes)],
        "marks": marks,
    }


def _mark_at(name: str, point: CurveRow, colour: int) -> Mark:
    return Mark(name=name, x=point.cost_share, y=point.no_worse, colour=colour)


def _marks(curve: CurveShown, preview: Preview | None, asked: bool) -> list[Mark]:
    marks = []
    if curve.cost_share is not None and curve.no_worse is not None:
        marks.append(Mark(name="the active target", x=curve.cost_share, y=curve.no_worse, colour=_OWN))
    if preview is not None:
        marks.append(Mark(name="the newest requests", x=preview.now.cost_share, y=preview.now.no_worse, colour=2))
    if preview is not None and asked:
        marks.append(Mark(name="as previewed", x=preview.then.cost_share, y=preview.then.no_worse, colour=_PREVIEWED))
    return marks


def _mark(one: ReliabilityBin) -> Mark:
    share = one.no_worse
    name = f"tier {one.tier}, {share.count} of {share.total}"
    return Mark(name=name, x=one.predicted, y=share.value or 0.0, colour=one.tier, low=share.low, high=share.high)


def _by_kind(kinds: KindsShown) -> list[list[KindRow]]:
    """Return the tiers of each kind that has verified answers."""
    found: dict[str, list[KindRow]] = {}
    for row in kinds.rows:
        found.setdefault(row.name, []).append(row)
    return [rows for rows in found.values() if any(row.answers for row in rows)]


ROUTING_PAGE = Page(title="Routing", path="/routing", handlers=(show_routing_page, apply_target))


SHADOW_PATH = "/admin/shadow"
# Characters of a text that the page shows; the request's own page has the rest.
_SHOWN = 4000
_DONE = {
    "route": "Routing is on: its decisions hold from now on.",
    "observe": "Observe mode is on: one tier answers everything, and routing's decisions are recorded.",
}


@get("/shadow")
async def show_shadow_page(request: HttpRequest) -> Response[Any]:
    """Query: `since` and `last`, as for `/admin/api/shadow`."""
    serving = serving_of(request)
    report, routing = await shadow_shown(serving, request.query_params), serving.routing
    knobs = routing.knobs.active
    answers = min(knobs.observe_tier or routing.served.strongest, routing.served.strongest)
    return page(request, "shadow.html", "Shadow mode", report=report, knobs=knobs, answers=answers, most=_SHOWN)


@post("/shadow/mode", status_code=200)
async def switch_mode(request: HttpRequest) -> Response[Any]:
    """Switch routing on, or observe it; permanent, for admins only."""
    fields = await fields_of(request)
    mode = fields.get("mode", "")
    if mode not in _DONE:
        raise bad_request(f"Invalid mode: {mode[:64]!r}; allowed: {', '.join(_DONE)}.", "mode", "invalid_value")
    operations = operations_of(request)
    knobs, actor, reason = operations.serving.routing.knobs, actor_of(request), reason_of(fields)
    done = await order_knobs(operations, actor, knobs, {"mode": mode}, reason)
    if not done.changed:
        return back_to(SHADOW_PATH, "Nothing changed: the mode is the same.")
    late = "" if done.recorded else " The database is down: the change is recorded later."
    return back_to(SHADOW_PATH, f"{_DONE[mode]}{late}")


SHADOW_PAGE = Page(title="Shadow", path="/shadow", handlers=(show_shadow_page, switch_mode))
