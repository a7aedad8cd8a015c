"""`GET /admin/api/system`: dependencies with their failure policy, versions, schema, disk and memory."""

from typing import Any

import msgspec
from litestar import get
from litestar.response import Response

from gateway.api.csv_export import csv_response, wants_csv
from gateway.api.operations import describe
from gateway.parts import HttpRequest, parts_of
from gateway.system_state import Dependency, SystemState, system_state


@get("/system", operation_class=describe(None, SystemState), summary="Show what the gateway stands on")
async def show_system(request: HttpRequest) -> Response[Any]:
    """Every dependency as it answers now. Query: `format=csv` for the dependencies as a file."""
    state = await system_state(parts_of(request))
    if wants_csv(dict(request.query_params)):
        rows = [msgspec.structs.asdict(one) for one in state.dependencies]
        return csv_response("dependencies", Dependency.__struct_fields__, rows)
    return Response(state, media_type="application/json")
