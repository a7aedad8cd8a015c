"""`GET /admin/api/system`: dependencies with their failure policy, versions, schema, disk."""

from collections.abc import Iterator
from typing import Any

import msgspec
from litestar import get
from litestar.response import Response

from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.operations.csv_export import as_asked
from gateway.operations.running import operations_of
from gateway.operations.usecases.system_state import SystemState, system_state


class SystemRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the state: `part` is dependency, problem, fact or memory."""

    part: str
    name: str
    state: str | None = None
    detail: str | None = None
    policy: str | None = None


@get("/system", operation_class=describe(None, SystemState), summary="Show the gateway's dependencies and state")
async def show_system(request: HttpRequest) -> Response[Any]:
    """Every dependency as it answers now; versions, schema, disk and memory. Query: `format`, json or csv."""
    state = await system_state(operations_of(request))
    return as_asked(request, "system", state, SystemRow.__struct_fields__, _rows(state))


def _rows(state: SystemState) -> Iterator[SystemRow]:
    for one in state.dependencies:
        yield SystemRow(part="dependency", name=one.name, state=one.state, detail=one.detail, policy=one.policy)
    for name, problem in state.problems.items():
        yield SystemRow(part="problem", name=name, detail=problem)
    facts = {
        "version": state.version,
        "python": state.python,
        "started": state.started,
        "workers": state.workers,
        "catalogue": state.catalogue,
        "fingerprint": state.fingerprint,
        "classifier": state.classifier,
        "schema": state.schema.current,
        "newest schema": state.schema.newest,
        "disk free, bytes": state.disk.free,
        "disk, bytes": state.disk.total,
    }
    for name, value in facts.items():
        yield SystemRow(part="fact", name=name, detail=None if value is None else str(value))
    for group, lines in state.memory.items():
        yield from (SystemRow(part="memory", name=group, detail=line) for line in lines)
