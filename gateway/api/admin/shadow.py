"""`GET /admin/api/shadow`: what routing would have saved while it was observed, and how good it would have been."""

import time
from typing import Any

from litestar import get
from litestar.response import Response

from gateway.api.admin.costs import epoch_of
from gateway.api.operations import describe
from gateway.composition.quality_loop import sampling_settings
from gateway.csv_export import as_asked
from gateway.numbers import whole_number
from gateway.protocols.http_request import HttpRequest
from gateway.serving import serving_of
from gateway.stores.database_reach import reached
from quality.shadow.cases import ShadowCase
from quality.shadow.figures import ShadowReport
from quality.shadow.observed import NEWEST
from quality.shadow.report import budget_now, shadow_report

# More would take longer than a page may: aio report shadow has no such bound.
_MOST = 20_000
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
    shown = await shadow_shown(request)
    return as_asked(request, "shadow", shown, _COLUMNS, shown.cases)


async def shadow_shown(request: HttpRequest) -> ShadowReport:
    """Return the report that the query asks for. Raises `ApiError` 400 and 503."""
    serving = serving_of(request)
    query = request.query_params
    since = epoch_of(request, "since", 0.0)
    last = whole_number(query.get("last", str(NEWEST)), "last", 1, _MOST)
    sampling = sampling_settings(serving.settings, serving.routing.strongest)
    budget = await reached(budget_now(serving.database, sampling, time.time()))
    return await reached(shadow_report(serving.database, budget, since, last))
