"""`GET /admin/api/costs`: what was spent, by tier, key and day, and what routing has saved."""

import math
import re
import time
from typing import Any

from litestar import get
from litestar.response import Response

from gateway.api.operations import describe
from gateway.database_reach import reached
from gateway.errors import bad_request
from gateway.parts import HttpRequest, parts_of
from quality.costs import CostReport, cost_report

_DAYS_SHOWN = 30.0
_TAG = re.compile(r"[A-Za-z0-9._:-]{1,64}\Z")
_MOST = 4_102_444_800.0  # the year 2100


@get("/costs", operation_class=describe(None, CostReport), summary="Show costs, saving and the traffic split")
async def show_costs(request: HttpRequest) -> Response[Any]:
    """Query: `since` and `until` in epoch seconds, by default the last 30 days; `tag`, a name in the requests'
    `metadata` whose values the costs are split by too."""
    until = _epoch(request, "until", time.time())
    since = _epoch(request, "since", max(until - _DAYS_SHOWN * 86_400, 0.0))
    if since > until:
        raise bad_request(f"since {since:g} is after until {until:g}.", "since", "invalid_value")
    tag = request.query_params.get("tag")
    if tag is not None and not _TAG.match(tag):
        raise bad_request(
            "Invalid tag: allowed are 1 to 64 letters, digits, dots, colons, underscores and hyphens.",
            "tag",
            "invalid_value",
        )
    parts = parts_of(request)
    report = await reached(cost_report(parts.database, since, until, parts.routing.price, tag=tag))
    return Response(report, media_type="application/json")


def _epoch(request: HttpRequest, name: str, usual: float) -> float:
    given = request.query_params.get(name)
    if given is None:
        return usual
    try:
        value = float(given)
    except ValueError:
        value = math.nan
    if not 0 <= value <= _MOST:
        raise bad_request(f"Invalid {name}: {given[:64]!r} is no time in epoch seconds.", name, "invalid_value")
    return value
