"""`GET /admin/api/costs`: spending by tier, key and day, and the saving by routing."""

import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from litestar import get
from litestar.response import Response

from gateway.base.errors import bad_request
from gateway.base.stores.database import reached
from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.inference.service import serving_of
from gateway.operations.csv_export import as_asked
from gateway.operations.usecases.shadow import epoch_of
from quality.estimates.costs import CostReport, Part, Spent, cost_report

_DAYS_SHOWN = 30.0
_TAG = re.compile(r"[A-Za-z0-9._:-]{1,64}\Z")
_COLUMNS = ("split", *(name for name in Part.__struct_fields__ if name != "spent"), *Spent.__struct_fields__)


@get("/costs", operation_class=describe(None, CostReport), summary="Show costs, saving and the traffic split")
async def show_costs(request: HttpRequest) -> Response[Any]:
    """Query: `since` and `until` in epoch seconds, by default the last 30 days; `tag`, a name in the requests'
    `metadata` by whose values costs are split too; `format`, json or csv: a row for each part of each split."""
    until = epoch_of(request.query_params, "until", time.time())
    since = epoch_of(request.query_params, "since", max(until - _DAYS_SHOWN * 86_400, 0.0))
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
    report = await reached(cost_report(serving.database, since, until, serving.routing.served.price, tag=tag))
    return as_asked(request, "costs", report, _COLUMNS, _rows(report))


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
                yield {"split": split, **msgspec.structs.asdict(part), **msgspec.structs.asdict(part.spent)}
