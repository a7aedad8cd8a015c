"""`GET /admin/api/system`: dependencies with their failure policy, versions, schema, disk; and the checklist."""

from pathlib import Path
from typing import Any

import msgspec
from litestar import get
from litestar.response import Response

from gateway.api.csv_export import csv_response, wants_csv
from gateway.api.operations import describe
from gateway.parts import HttpRequest, parts_of
from gateway.reporting.checklist import CheckedItem, checklist
from gateway.system_state import Dependency, SystemState, system_state

# Of a checkout; an installed package has no measurements beside it, and every item is then not measured.
MEASUREMENTS = Path(__file__).resolve().parents[2] / "docs" / "measurements"


class Checklist(msgspec.Struct, frozen=True, kw_only=True):
    """The sources' best practices, as `aio checklist` prints them."""

    items: list[CheckedItem]


@get("/system", operation_class=describe(None, SystemState), summary="Show what the gateway stands on")
async def show_system(request: HttpRequest) -> Response[Any]:
    """Every dependency as it answers now. Query: `format=csv` for the dependencies as a file."""
    state = await system_state(parts_of(request))
    if wants_csv(dict(request.query_params)):
        rows = [msgspec.structs.asdict(one) for one in state.dependencies]
        return csv_response("dependencies", Dependency.__struct_fields__, rows)
    return Response(state, media_type="application/json")


@get("/checklist", operation_class=describe(None, Checklist), summary="Show the checklist of best practices")
async def show_checklist(request: HttpRequest) -> Response[Any]:
    """Pass, fail or not measured, with the evidence. Query: `format=csv`."""
    items = checklist(MEASUREMENTS)
    if wants_csv(dict(request.query_params)):
        rows = [msgspec.structs.asdict(one.item) | {"status": one.status, "evidence": one.evidence} for one in items]
        return csv_response("checklist", ("row", "area", "item", "status", "evidence"), rows)
    return Response(Checklist(items=items), media_type="application/json")
