"""`GET /admin/api/costs`: spending by tier, key and day, and the saving by routing; and the spend page: what keys,
teams and models cost, against the strongest tier alone and with all checks; budgets.
"""

import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from litestar import get
from litestar.response import Response

from gateway.admin.resource import json_or_csv, names_of, query_page, time_asked
from gateway.base.errors import bad_request
from gateway.base.numbers import whole_number
from gateway.base.stores.database import reached
from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.inference.service import serving_of
from gateway.operations.dashboard.html.charts import DASHES, Series
from gateway.operations.dashboard.html.rendering import Page, page
from gateway.operations.running import operations_of
from gateway.tenancy.budgets.budget_commands import states_of
from gateway.tenancy.keys.key_commands import BUDGETS
from quality.estimates.costs import USUAL_DAYS, CostReport, NetSaving, Part, Spent, cost_report, first_second

_TAG = re.compile(r"[A-Za-z0-9._:-]{1,64}\Z")
_COLUMNS = (
    "split",
    *(name for name in Part.__struct_fields__ if name not in ("spent", "net")),
    *Spent.__struct_fields__,
    *NetSaving.__struct_fields__,
)


@get("/costs", operation_class=describe(None, CostReport), summary="Show costs, saving and the traffic split")
async def show_costs(request: HttpRequest) -> Response[Any]:
    """Query: `since` and `until` in epoch seconds, by default the last 30 days; `tag`, a name in the requests'
    `metadata` by whose values costs are split too; `format`, json or csv: a row for each part of each split."""
    until = time_asked(request.query_params, "until", time.time())
    since = time_asked(request.query_params, "since", max(until - USUAL_DAYS * _DAY, 0.0))
    if since > until:
        raise bad_request(f"since {since:g} is after until {until:g}.", "since", "invalid_value")
    tag = request.query_params.get("tag")
    if tag is not None and not _TAG.match(tag):
        raise bad_request(
            "Invalid tag: allowed are 1 to 64 letters, digits, dots, colons, underscores and hyphens.",
            "tag",
            "invalid_value",
        )
    serving = serving_of(request)
    report = await reached(cost_report(serving.database, since, until, tag=tag))
    return json_or_csv(request, "costs", report, _COLUMNS, _rows(report))


def _rows(report: CostReport) -> Iterator[dict[str, Any]]:
    splits: dict[str, Sequence[Part | None]] = {
        "total": [report.total],
        "tier": report.by_tier,
        "model": report.by_model,
        "day": report.by_day,
        "key": [*report.by_key, report.other_keys],
        "team": report.by_team,
        "tag": [*report.by_tag, report.other_tags],
    }
    for split, parts in splits.items():
        for part in parts:
            if part is not None:
                yield {
                    "split": split,
                    **msgspec.structs.asdict(part),
                    **msgspec.structs.asdict(part.spent),
                    **msgspec.structs.asdict(part.net),
                }


MOST_DAYS = 366
ROWS = 100
_DAY = 86_400


@get("/spend")
async def show_spend(request: HttpRequest) -> Response[Any]:
    """Query: `days` that end today, UTC; 30 by default."""
    days = whole_number(request.query_params.get("days") or str(USUAL_DAYS), "days", 1, MOST_DAYS)
    operations, now = operations_of(request), time.time()
    database = operations.serving.database
    since = first_second(days, now)
    report = await reached(cost_report(database, since, now))
    bounds = await query_page(request, BUDGETS, {"limit": str(ROWS)})
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
