"""`/admin/api/routing/…`: cost against quality, the effect of another target, and tier reliability."""

from typing import Any

import msgspec
from litestar import get
from litestar.response import Response

from gateway.base.stores.database import reached
from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.inference.service import serving_of
from gateway.operations.csv_export import as_asked
from gateway.operations.running import operations_of
from gateway.operations.usecases.routing_views import (
    CurveRow,
    CurveShown,
    KindRow,
    KindsShown,
    TierRow,
    TiersCompared,
    TrafficShown,
    curve_shown,
    kinds_shown,
    preview_of,
    target_of,
    tiers_compared,
    traffic_shown,
)
from gateway.operations.usecases.target_preview import OperatingPoint, Preview
from quality.estimates.kinds import acceptance
from quality.estimates.reliability import ReliabilityBin, reliability
from quality.estimates.traffic import (
    ClassTraffic,
)


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
    return as_asked(request, "curve", shown, CurveRow.__struct_fields__, shown.points)


@get("/routing/preview", operation_class=describe(None, PreviewShown), summary="Preview another quality target")
async def show_preview(request: HttpRequest) -> Response[Any]:
    """The effect of `quality_target` (0 to 1; empty is the active one) on the newest requests; nothing changes.
    `format`: json or csv."""
    wanted = target_of(request.query_params.get("quality_target", ""))
    shown = PreviewShown(preview=await preview_of(serving_of(request), wanted))
    rows = [] if shown.preview is None else [shown.preview.now, shown.preview.then]
    return as_asked(request, "preview", shown, OperatingPoint.__struct_fields__, rows)


@get(
    "/routing/reliability", operation_class=describe(None, ReliabilityShown), summary="Show calibration on live traffic"
)
async def show_reliability(request: HttpRequest) -> Response[Any]:
    """By tier and tenth of the predicted P(no worse). `format`: json or csv."""
    serving = serving_of(request)
    shown = ReliabilityShown(bins=await reached(reliability(serving.database, serving.routing.served.strongest)))
    return as_asked(request, "reliability", shown, ReliabilityBin.__struct_fields__, shown.bins)


@get("/routing/kinds", operation_class=describe(None, KindsShown), summary="Show kinds of prompts")
async def show_kinds(request: HttpRequest) -> Response[Any]:
    """How good each tier is for each kind, by verified answers. `format`: json or csv."""
    operations = operations_of(request)
    shown = await kinds_shown(operations, await reached(acceptance(operations.serving.database)))
    return as_asked(request, "kinds", shown, KindRow.__struct_fields__, shown.rows)


@get("/routing/traffic", operation_class=describe(None, TrafficShown), summary="Show the traffic and its cost")
async def show_traffic(request: HttpRequest) -> Response[Any]:
    """Classes of the newest requests, which tiers answered them, saving, expected quality. `format`: json, or csv for
    the classes."""
    serving = serving_of(request)
    shown = await traffic_shown(serving, await reached(acceptance(serving.database)))
    return as_asked(request, "traffic", shown, ClassTraffic.__struct_fields__, shown.traffic.classes)


@get("/routing/tiers", operation_class=describe(None, TiersCompared), summary="Compare the tiers")
async def show_tiers(request: HttpRequest) -> Response[Any]:
    """Accuracy, price and latency, and tiers that are not worth their price. `format`: json or csv."""
    serving = serving_of(request)
    shown = await tiers_compared(serving, await reached(acceptance(serving.database)))
    return as_asked(request, "tiers", shown, TierRow.__struct_fields__, shown.tiers)
