"""`GET /admin/api/shadow`: what routing would have saved while it was observed, and how good it would have been."""

from typing import Any

from litestar import get
from litestar.response import Response

from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.inference.service import serving_of
from gateway.operations.csv_export import as_asked
from gateway.operations.usecases.shadow import shadow_shown
from quality.shadow.cases import ShadowCase
from quality.shadow.figures import ShadowReport

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
    return as_asked(request, "shadow", shown, _COLUMNS, shown.cases)
