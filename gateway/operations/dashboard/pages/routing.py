"""The routing page: cost against quality, the effect of another target before it is applied, and tier reliability."""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from litestar import get, post
from litestar.response import Response

from classifier.complexity.quality_setting import QUALITY_SETTINGS
from gateway.base.errors import ApiError, bad_request
from gateway.base.stores.database import reached
from gateway.edge.asgi import HttpRequest
from gateway.operations.dashboard.html.charts import Curve, Mark, Plane
from gateway.operations.dashboard.html.forms import fields_of, reason_of
from gateway.operations.dashboard.html.page import Page
from gateway.operations.dashboard.html.rendering import back_to, page
from gateway.operations.running import Operations, operations_of
from gateway.operations.usecases.knobs import order_knobs
from gateway.operations.usecases.routing_views import (
    CurveShown,
    KindRow,
    KindsShown,
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
from gateway.operations.usecases.target_preview import Preview
from gateway.tenancy.access.admin_guard import OPERATOR, actor_of
from quality.estimates.kinds import acceptance
from quality.estimates.reliability import ReliabilityBin, reliability

T = TypeVar("T")
PATH = "/admin/routing"
_PROBES, _OWN = 4, 1


@get("/routing")
async def show_routing_page(request: HttpRequest) -> Response[Any]:
    """Query: `quality_target`, to preview it on the newest requests."""
    operations = operations_of(request)
    wanted = target_of(request.query_params.get("quality_target", ""))
    previewed, curve, bins, (kinds, compared, seen) = await asyncio.gather(
        preview_of(operations.serving, wanted),
        _unless_off(curve_shown(operations)),
        reached(reliability(operations.serving.database, operations.serving.routing.served.strongest)),
        _verified(operations),
    )
    active = rule_at(operations.serving, operations.serving.routing.active_target)
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
        plane=Plane(y=_room(curve)),
        curves=_curves(curve),
        marks=_marks(curve, previewed, wanted is not None),
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
        return back_to(PATH, "Nothing changed: the target is the same.")
    said = "the server's own" if target is None else f"{target:g}"
    late = "" if done.recorded else " The database is down: the change is recorded later."
    return back_to(PATH, f"The quality target is now {said}.{late}")


async def _verified(operations: Operations) -> tuple[KindsShown, TiersCompared, TrafficShown]:
    accepted = await reached(acceptance(operations.serving.database))
    return await asyncio.gather(
        kinds_shown(operations, accepted),
        tiers_compared(operations.serving, accepted),
        traffic_shown(operations.serving, accepted),
    )


async def _unless_off(shown: Awaitable[T]) -> T | None:
    try:
        return await shown
    except ApiError as error:
        if error.status != 409:
            raise
        return None


def _room(curve: CurveShown | None) -> tuple[float, float]:
    """From a tenth below the curve's least quality up to 1."""
    least = min((point.no_worse for point in curve.points), default=0.0) if curve is not None else 0.0
    return max(int(least * 10) / 10, 0.0) if least < 1 else 0.9, 1.0


def _curves(curve: CurveShown | None) -> list[Curve]:
    if curve is None:
        return []
    points = [(point.cost_share, point.no_worse) for point in curve.points]
    return [Curve(name="probes", points=points, colour=_PROBES, dashes="6 4")] if points else []


def _marks(curve: CurveShown | None, preview: Preview | None, asked: bool) -> list[Mark]:
    marks = []
    if curve is not None and curve.cost_share is not None and curve.no_worse is not None:
        marks.append(Mark(name="the active target", x=curve.cost_share, y=curve.no_worse, colour=_OWN))
    if preview is not None:
        marks.append(Mark(name="the newest requests", x=preview.now.cost_share, y=preview.now.no_worse, colour=2))
    if preview is not None and asked:
        marks.append(Mark(name="as previewed", x=preview.then.cost_share, y=preview.then.no_worse, colour=3))
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
