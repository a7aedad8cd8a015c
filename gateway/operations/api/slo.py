"""`GET /admin/api/slo`: whether each tier meets its service levels, with the figures."""

from typing import Any

import msgspec
from litestar import get
from litestar.response import Response

from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.operations.csv_export import as_asked
from gateway.operations.running import operations_of
from gateway.telemetry.objectives.service_levels import levels_of_all
from gateway.telemetry.objectives.slo import SloReport, slo_report


@get("/slo", operation_class=describe(None, SloReport), summary="Show the state of service levels")
async def show_slo(request: HttpRequest) -> Response[Any]:
    """Green, amber or red for each tier, over the last five minutes, of all gateway processes behind this port. Query:
    `format`, json or csv: a row for each objective of each tier."""
    operations = operations_of(request)
    levels = operations.metrics.levels
    models = {number: tier.model for number, tier in sorted(operations.serving.routing.served.tiers.items())}
    report = slo_report(await levels_of_all(levels, operations.peers), levels.window_seconds, models)
    rows = [
        {name: getattr(level, name) for name in ("tier", "model", "requests", "failed")}
        | msgspec.structs.asdict(check.objective)
        | {"value": check.value, "state": check.state}
        for level in (report.overall, *report.tiers)
        for check in level.checks
    ]
    return as_asked(request, "slo", report, list(rows[0]), rows)
