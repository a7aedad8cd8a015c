"""The overview: tiers, latencies, cost, queues, memory and alerts; live by server-sent events."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from litestar import get
from litestar.response import Response, Stream

from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.operations.csv_export import as_asked
from gateway.operations.dashboard.first_steps import first_steps
from gateway.operations.dashboard.html.charts import DASHES, Series
from gateway.operations.dashboard.html.first_request import address, first_request
from gateway.operations.dashboard.html.page import Page
from gateway.operations.dashboard.html.rendering import HEADERS, TEMPLATES, page
from gateway.operations.running import Operations, operations_of
from gateway.operations.usecases.worth import worth_last
from gateway.telemetry.overview import Overview, TierNow

EVENT_SECONDS = 2.0
# The stream ends soon and the browser reconnects: by then the session may have ended, or the server may be stopping.
EVENTS = 5
_CSV = ("ttft_seconds", "itl_seconds", "e2e_seconds")


@get("/")
async def show_overview(request: HttpRequest) -> Response[Any]:
    """The page."""
    operations = operations_of(request)
    shown = await _context(operations, await operations.live.overview())
    curl, api_url = first_request(request), f"{address(request)}/v1"
    return page(request, "overview.html", "Overview", **shown, curl=curl, api_url=api_url)


@get("/overview/events")
async def overview_events(request: HttpRequest) -> Stream:
    """Send the changing parts of the page, as HTML, every two seconds."""
    operations = operations_of(request)
    headers = {**HEADERS, "x-accel-buffering": "no"}
    return Stream(_events(operations), media_type="text/event-stream", headers=headers)


@get("/overview", operation_class=describe(None, Overview), summary="Show the current figures of tiers and cores")
async def overview_figures(request: HttpRequest) -> Response[Any]:
    """Everything on the dashboard's overview, over the last five minutes. Query: `format`, json or csv: the tiers."""
    now = await operations_of(request).live.overview()
    rows = [_flat(tier) for tier in (now.overall, *now.tiers)]
    return as_asked(request, "overview", now, list(rows[0]), rows)


async def _events(operations: Operations) -> AsyncIterator[str]:
    yield "retry: 1000\n\n"
    for _ in range(EVENTS):
        await asyncio.sleep(EVENT_SECONDS)
        text = await fragment(operations, await operations.live.overview())
        yield "".join(f"data: {line}\n" for line in text.splitlines()) + "\n"


async def fragment(operations: Operations, now: Overview) -> str:
    """Return the changing part of the page, rendered once for all viewers of the same figures."""
    drawn = operations.live.drawn
    if drawn is None or drawn[0] is not now:
        shown = await _context(operations, now)
        drawn = operations.live.drawn = (now, TEMPLATES.get_template("overview_live.html").render(shown))
    return drawn[1]


async def _context(operations: Operations, now: Overview) -> dict[str, Any]:
    tiers = [tier.tier or 0 for tier in now.tiers]
    traffic = [
        Series(
            name=f"Tier {number}",
            values=[point.requests_per_second.get(number) for point in now.history],
            colour=number,
            dashes=DASHES.get(number, "none"),
        )
        for number in tiers
    ]
    latency = [
        Series(name=name, values=[getattr(point, field) for point in now.history], colour=colour, dashes=DASHES[colour])
        for name, field, colour in (("p50", "ttft_p50", 1), ("p95", "ttft_p95", 3), ("p99", "ttft_p99", 4))
    ]
    steps, worth = await first_steps(operations), worth_last(operations)
    return {
        "now": now,
        # Nothing to chart: the page says what to do instead.
        "quiet": not now.overall.requests and all(point.ttft_p50 is None for point in now.history),
        "problems": operations.problems,
        "steps": steps,
        "worth": None if worth is None else worth.catalogue.sentence,
        "open_steps": sum(step.done is not True for step in steps),
        "traffic": traffic,
        "latency": latency,
        "estimated": {spec.number: spec.price.estimated for spec in operations.serving.routing.served.catalog.tiers},
        "objectives": {spec.number: spec.objective for spec in operations.serving.routing.served.catalog.tiers},
    }


def _flat(tier: TierNow) -> dict[str, Any]:
    row = msgspec.to_builtins(tier)
    for name in _CSV:
        row |= {f"{name}_{share}": row[name][share] for share in ("p50", "p95", "p99")}
    return {name: value for name, value in row.items() if name not in (*_CSV, "checks")}


OVERVIEW_PAGE = Page(title="Overview", path="/", handlers=(show_overview, overview_events))
