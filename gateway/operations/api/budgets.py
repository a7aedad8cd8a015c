"""`/admin/api/budgets`: budgets of keys and teams, and their spending."""

from typing import Any

import msgspec
from litestar import delete, get, put
from litestar.params import FromPath
from litestar.response import Response

from gateway.base.stores.database import reached
from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.inference.api.reading.parsing import read_body
from gateway.inference.service import serving_of
from gateway.operations.csv_export import csv_response, wants_csv
from gateway.operations.running import operations_of
from gateway.operations.usecases.budgets import BudgetOrder
from gateway.operations.usecases.keys import obeyed
from gateway.operations.usecases.pages import page_asked_for
from gateway.tenancy.access.admin_guard import order_of
from gateway.tenancy.access.guard import access_of
from gateway.tenancy.budgets.budget_commands import BudgetState, remove_budget, set_budget, states_of
from gateway.tenancy.keys.key_commands import BUDGETS


class BudgetSet(msgspec.Struct, frozen=True, kw_only=True):
    """It applies here at once, in other processes within their polling interval."""

    budget_id: str


class BudgetRemoved(msgspec.Struct, frozen=True, kw_only=True):
    """It no longer limits anything."""

    removed: bool = True


class BudgetPage(msgspec.Struct, frozen=True, kw_only=True):
    """`next` is the cursor of the next page, None on the last."""

    rows: list[BudgetState]
    next: str | None


@get("/budgets", operation_class=describe(None, BudgetPage), summary="List budgets")
async def list_budgets(request: HttpRequest) -> Response[Any]:
    """Newest first, with the current period as last reported by replicas. Query: `subject` (an id, or the name of a key
    of the settings), and as for verifications."""
    operations = operations_of(request)
    query = dict(request.query_params)
    as_csv = wants_csv(query)
    page = await page_asked_for(request, BUDGETS, query)
    states = await reached(states_of(operations.serving.database, page.rows, operations.access.tenancy.clock.now()))
    if as_csv:
        columns = BudgetState.__struct_fields__
        return csv_response("budgets", columns, [msgspec.structs.asdict(state) for state in states])
    return Response(BudgetPage(rows=states, next=page.next), media_type="application/json")


@put("/budgets", operation_class=describe(BudgetOrder, BudgetSet), summary="Set a budget")
async def put_budget(request: HttpRequest) -> Response[Any]:
    """What was spent before in the period counts. An existing budget of the same subject and period is changed and
    keeps its spending."""
    order = await read_body(request, BudgetOrder)
    operations = operations_of(request)
    static = order.kind == "key" and operations.access.tenancy.directory.is_static(order.subject)
    work = set_budget(
        operations.serving.database,
        order.kind,
        order.subject,
        order.period,
        order.amount_usd,
        order_of(request, order.reason),
        static,
    )
    return Response(BudgetSet(budget_id=await obeyed(access_of(request), work)), media_type="application/json")


@delete(
    "/budgets/{budget_id:str}",
    status_code=200,
    operation_class=describe(None, BudgetRemoved),
    summary="Remove a budget",
)
async def delete_budget(request: HttpRequest, budget_id: FromPath[str]) -> Response[Any]:
    """A new one counts what was spent in its period. Query: `reason`."""
    reason = request.query_params.get("reason")
    order = order_of(request, None if reason is None else reason[:1024])
    await obeyed(access_of(request), remove_budget(serving_of(request).database, budget_id, order))
    return Response(BudgetRemoved(), media_type="application/json")
