"""The overview: tiers, latencies, cost, queues, memory and alerts, live by server-sent events; what a new installation
still needs; `GET /`, a page for a person, or JSON for a program, that says whether the gateway is ready and where to
go on; and `GET /admin/api/slo`: whether each tier meets its service levels, with the figures.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from litestar import get, head
from litestar.response import Response, Stream
from sqlalchemy import Table, select
from sqlalchemy.exc import SQLAlchemyError

from gateway import __version__
from gateway.admin.health import health_of
from gateway.admin.resource import Admin, AsCsv, json_or_csv
from gateway.admin.traffic import LAST, SPAN_NAMES, USUAL_SPAN, SpanQuery, charts_of, lettered
from gateway.base.errors import ApiError
from gateway.edge.asgi import HttpRequest, OnceRouter, root_of
from gateway.edge.proxies import host_is_allowed
from gateway.inference.service import Serving
from gateway.operations.dashboard.html.rendering import (
    HEADERS,
    TEMPLATES,
    Page,
    address,
    below,
    first_request,
    page,
    tier_names,
)
from gateway.operations.running import Operations, operations_of
from gateway.telemetry.overview import Overview, TierNow
from gateway.telemetry.service_levels import levels_of_all
from gateway.telemetry.slo import SloReport, slo_report
from gateway.tenancy.admin_guard import session_caller
from gateway.tenancy.guard import Access, admit_visitor
from migrations.tables.quality import training_rows
from migrations.tables.requests import requests
from migrations.tables.tenancy import budgets
from quality.estimates.traffic import Span, Traffic

# A page does not wait longer for a database that hangs.
WAIT_SECONDS = 1.0


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A step of setting up."""

    title: str
    done: bool | None
    """None while the database does not answer."""
    how: str
    """What to do."""
    link: str
    """Where to do it."""
    link_text: str


async def first_steps(operations: Operations) -> list[Step]:
    """Return all steps in their order."""
    asked, labelled, limited = await _held(operations, requests, training_rows, budgets)
    return [
        Step(
            title="Send a first request",
            done=asked,
            how="Any OpenAI client works, with the model auto.",
            link="/docs",
            link_text="API documentation",
        ),
        Step(
            title="Make a key",
            done=operations.access.tenancy.directory.asks_for_keys,
            how="Without one everybody who reaches this port is answered.",
            link="/admin/keys",
            link_text="Keys",
        ),
        Step(
            title="Add a second tier",
            done=len(operations.serving.routing.served.tiers) > 1,
            how="Routing chooses between a cheap model and a strong one: add a tier to the catalogue.",
            link="/admin/system",
            link_text="System",
        ),
        Step(
            title="Give it labels",
            done=labelled,
            how="Feedback, verified samples or aio outcomes import say where the cheap tier is good enough.",
            link="/admin/quality",
            link_text="Quality",
        ),
        Step(
            title="Limit spending",
            done=limited,
            how="A budget of a key or a team ends requests that would exceed it.",
            link="/admin/keys",
            link_text="Budgets",
        ),
    ]


async def _held(operations: Operations, *tables: Table) -> list[bool | None]:
    """Whether each table has a row; None while the database is away or takes too long. A table that has once had one is
    not asked again."""
    live, answered = operations.live, True
    unknown = [table for table in tables if table.name not in live.tables_held]
    if unknown:
        # Pages share a look, and wait for it no longer than `WAIT_SECONDS` from its start: a database may hang.
        now = asyncio.get_running_loop().time()
        if live.tables_reading is None or live.tables_reading[0].done():
            live.tables_reading = (asyncio.ensure_future(_read(operations, unknown)), now + WAIT_SECONDS)
        reading, until = live.tables_reading
        await asyncio.wait([reading], timeout=max(until - now, 0.0))
        answered = reading.done() and reading.result()
    return [True if table.name in live.tables_held else (False if answered else None) for table in tables]


async def _read(operations: Operations, tables: list[Table]) -> bool:
    """Note which tables have a row; return whether the database answered."""
    try:
        async with operations.serving.database.connect() as connection:
            for table in tables:
                if (await connection.execute(select(1).select_from(table).limit(1))).first() is not None:
                    operations.live.tables_held.add(table.name)
    except (SQLAlchemyError, OSError):
        return False
    return True


class FrontTier(msgspec.Struct, frozen=True, kw_only=True):
    """A tier by its names, and whether it takes requests now."""

    tier: int
    name: str
    model: str
    healthy: bool


class FrontPage(msgspec.Struct, frozen=True, kw_only=True):
    """What the front page shows."""

    name: str = "AIO gateway"
    version: str = __version__
    status: str
    """As of `/health/ready`."""
    problems: dict[str, str]
    """As of `/health/ready`."""
    tiers: list[FrontTier] | None
    """None for callers who may not see the models."""
    docs: str
    dashboard: str
    base_url: str
    curl: str
    """A first request."""


@get("/")
async def front_page(request: HttpRequest) -> Response[Any]:
    """HTML where the client takes it, else JSON; always 200, since it is no probe."""
    shown = await _front(request)
    if "text/html" in request.headers.get("accept", ""):
        response: Response[Any] = page(request, "front.html", "AIO gateway", front=shown)
    else:
        response = Response(shown, media_type="application/json", headers=HEADERS)
    response.headers["vary"] = "accept"
    return response


@head("/")
async def front_probe(request: HttpRequest) -> None:
    """Agents ask for it to see whether there is a server at all."""


def front_router() -> OnceRouter:
    """What stands at the root of the site."""
    return OnceRouter("/", route_handlers=[front_page, front_probe], guards=[admit_visitor], include_in_schema=False)


async def _front(request: HttpRequest) -> FrontPage:
    operations = operations_of(request)
    health, url = health_of(operations), address(request)
    return FrontPage(
        status=health.status,
        problems=health.problems,
        tiers=_tiers(operations.serving) if await _may_see_models(request, operations.access) else None,
        docs=f"{url}/docs",
        dashboard=f"{url}/admin",
        base_url=f"{url}/v1",
        curl=first_request(request),
    )


async def _may_see_models(request: HttpRequest, access: Access) -> bool:
    """Whether `GET /v1/models` would tell them, or the dashboard does."""
    directory, settings = access.tenancy.directory, access.settings
    if directory.knows(request.headers.get("authorization")):
        return True
    if not directory.asks_for_keys:
        return host_is_allowed(request.headers.get("host", ""), settings.host, settings.allowed_hosts)
    try:
        return await session_caller(request) is not None
    except ApiError:
        return False  # the database is down


def _tiers(serving: Serving) -> list[FrontTier]:
    return [
        FrontTier(
            tier=spec.number,
            name=spec.name,
            model=spec.served_name,
            healthy=serving.routing.served.tiers[spec.number].load().healthy,
        )
        for spec in serving.routing.served.catalog.tiers
    ]


EVENT_SECONDS = 2.0
# The stream ends soon and the browser reconnects: by then the session may have ended, or the server may be stopping.
EVENTS = 5
_CSV = ("ttft_seconds", "itl_seconds", "e2e_seconds")


@get("/")
async def show_overview(request: HttpRequest, admin: Admin, span: SpanQuery = USUAL_SPAN) -> Response[Any]:
    """The page."""
    live = admin.operations.live
    traffic = await live.traffic.look(span)
    shown = await _context(admin.operations, await live.overview(), traffic, span)
    curl, api_url = first_request(request), f"{address(request)}/v1"
    return page(
        request,
        "overview.html",
        "Overview",
        **shown,
        **_chart_context(admin.operations, traffic),
        with_charts=True,
        spans=SPAN_NAMES,
        curl=curl,
        api_url=api_url,
    )


@get("/overview/events")
async def overview_events(request: HttpRequest, admin: Admin, span: SpanQuery = USUAL_SPAN) -> Stream:
    """Send the changing parts of the page, as HTML, every two seconds."""
    headers = {**HEADERS, "x-accel-buffering": "no"}
    return Stream(_events(admin.operations, root_of(request), span), media_type="text/event-stream", headers=headers)


@get("/overview", summary="Show the current figures of tiers and cores")
async def overview_figures(admin: Admin, as_csv: AsCsv) -> Response[Overview]:
    """Everything on the dashboard's overview that is of the last five minutes; `/admin/api/traffic` has what was
    before. As CSV: the tiers."""
    now = await admin.operations.live.overview()
    rows = [_flat(tier) for tier in (now.overall, *now.tiers)]
    return json_or_csv(as_csv, "overview", now, list(rows[0]), rows)


async def _events(operations: Operations, root: str, span: Span) -> AsyncIterator[str]:
    yield "retry: 1000\n\n"
    charted: Traffic | None = None
    for _ in range(EVENTS):
        await asyncio.sleep(EVENT_SECONDS)
        now, traffic = await operations.live.overview(), await operations.live.traffic.look(span)
        text = await fragment(operations, now, traffic, span)
        if traffic is not charted:
            charted = traffic
            shown = _chart_context(operations, traffic) | {"traffic": traffic, "waiting": _waiting(operations)}
            text += TEMPLATES.get_template("overview_charts.html").render(shown)
        yield "".join(f"data: {line}\n" for line in below(root, text).splitlines()) + "\n"


async def fragment(operations: Operations, now: Overview, traffic: Traffic | None, span: Span) -> str:
    """Return the changing part of the page without charts, rendered once for all viewers of the same figures."""
    drawn = operations.live.drawn.get(span)
    if drawn is None or drawn[0] is not now or drawn[1] is not traffic:
        shown = await _context(operations, now, traffic, span)
        drawn = now, traffic, TEMPLATES.get_template("overview_live.html").render(shown, with_charts=False)
        operations.live.drawn[span] = drawn
    return drawn[2]


def _chart_context(operations: Operations, traffic: Traffic | None) -> dict[str, Any]:
    """Return the charts and what was changed in their time."""
    if traffic is None or not _has_requests(traffic):
        return {"charts": [], "changes": []}
    return {"charts": charts_of(traffic, tier_names(operations.serving)), "changes": lettered(traffic.changes)}


def _has_requests(traffic: Traffic) -> bool:
    return bool(traffic.together.admitted or traffic.together.refused)


def _waiting(operations: Operations) -> str:
    """Say why figures of the database are not there."""
    return "the database does not answer" if "database" in operations.readiness.problems else "loading"


async def _context(operations: Operations, now: Overview, traffic: Traffic | None, span: Span) -> dict[str, Any]:
    steps, worth = await first_steps(operations), operations.constant.last
    catalog = operations.serving.routing.served.catalog
    verdict = None if worth is None else worth.catalogue
    charted, waiting = traffic is not None and _has_requests(traffic), _waiting(operations)
    return {
        "now": now,
        "span": span,
        "span_name": LAST[span],
        "traffic": traffic,
        "charted": charted,
        # Nothing to chart: the page says what to do instead.
        "quiet": traffic is not None and not charted and not now.overall.requests,
        "waiting": waiting,
        "is_verified": operations.quality_loop is not None,
        "problems": operations.readiness.problems,
        "steps": steps,
        "open_steps": sum(step.done is not True for step in steps),
        "worth": verdict,
        # A single tier has nothing to be compared with.
        "worth_is_read": worth is not None or len(catalog.tiers) == 1,
        "worth_text": None if worth is None else operations.constant.in_words(verdict),
        "tier_names": tier_names(operations.serving),
        "estimated": {spec.number: spec.price.estimated for spec in catalog.tiers},
        "objectives": {spec.number: spec.objective for spec in catalog.tiers},
    }


def _flat(tier: TierNow) -> dict[str, Any]:
    row = msgspec.to_builtins(tier)
    for name in _CSV:
        row |= {f"{name}_{share}": row[name][share] for share in ("p50", "p95", "p99")}
    return {name: value for name, value in row.items() if name not in (*_CSV, "checks")}


OVERVIEW_PAGE = Page(title="Overview", path="/", handlers=(show_overview, overview_events))


@get("/slo", summary="Show the state of service levels")
async def show_slo(admin: Admin, as_csv: AsCsv) -> Response[SloReport]:
    """Green, amber or red for each tier, over the last five minutes, of all gateway processes behind this port. As CSV:
    a row for each objective of each tier."""
    levels = admin.operations.metrics.levels
    models = {number: tier.model for number, tier in sorted(admin.serving.routing.served.tiers.items())}
    report = slo_report(await levels_of_all(levels, admin.operations.peers), levels.window_seconds, models)
    rows = [
        {name: getattr(level, name) for name in ("tier", "model", "requests", "failed")}
        | msgspec.structs.asdict(check.objective)
        | {"value": check.value, "state": check.state}
        for level in (report.overall, *report.tiers)
        for check in level.checks
    ]
    return json_or_csv(as_csv, "slo", report, list(rows[0]), rows)
