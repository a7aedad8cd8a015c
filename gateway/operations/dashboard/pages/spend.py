"""The spend page: what keys, teams and models cost, against the strongest tier alone and with all checks; budgets."""

import time
from typing import Any

from litestar import get
from litestar.response import Response

from gateway.base.numbers import whole_number
from gateway.base.stores.database import reached
from gateway.edge.asgi import HttpRequest
from gateway.operations.dashboard.html.charts import DASHES, Series
from gateway.operations.dashboard.html.page import Page
from gateway.operations.dashboard.html.rendering import page
from gateway.operations.running import operations_of
from gateway.operations.usecases.keys import names_of
from gateway.operations.usecases.pages import page_asked_for
from gateway.tenancy.budgets.budget_commands import states_of
from gateway.tenancy.keys.key_commands import BUDGETS
from quality.estimates.costs import CostReport, cost_report

USUAL_DAYS, MOST_DAYS = 30, 366
ROWS = 100
_DAY = 86_400


@get("/spend")
async def show_spend(request: HttpRequest) -> Response[Any]:
    """Query: `days` that end today, UTC; 30 by default."""
    days = whole_number(request.query_params.get("days") or str(USUAL_DAYS), "days", 1, MOST_DAYS)
    operations, now = operations_of(request), time.time()
    database = operations.serving.database
    # Whole days: the first one counts from its beginning.
    since = (now // _DAY - days + 1) * _DAY
    report = await reached(cost_report(database, since, now, operations.serving.routing.served.price))
    bounds = await page_asked_for(request, BUDGETS, {"limit": str(ROWS)})
    budgets = await reached(states_of(database, bounds.rows, operations.access.tenancy.clock.now()))
    parts = [*report.by_key, *report.by_team]
    return page(
        request,
        "spend.html",
        "Spend",
        days=days,
        report=report,
        chart_lines=_by_day(report, since, days),
        budgets=budgets,
        names=await names_of(database, [*(part.name for part in parts), *(one.subject for one in budgets)]),
    )


def _by_day(report: CostReport, since: float, days: int) -> list[Series]:
    """Return a line of what was paid and one of what the strongest tier alone would have cost."""
    spent = {part.name: part.spent for part in report.by_day}
    dates = [time.strftime("%Y-%m-%d", time.gmtime(since + day * _DAY)) for day in range(days)]
    found = [(one.cost_usd, one.baseline_usd) if (one := spent.get(date)) else (0.0, 0.0) for date in dates]
    return [
        Series(name=name, values=[both[place] for both in found], colour=colour, dashes=DASHES[colour])
        for place, (name, colour) in enumerate((("spent", 1), ("all by the strongest tier", 3)))
    ]


SPEND_PAGE = Page(title="Spend", path="/spend", handlers=(show_spend,))
