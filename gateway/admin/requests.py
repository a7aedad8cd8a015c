"""The requests page: requests by tier, status, model, key, time or id; and the path of each request. Agents' sessions:
the newest ones, and one with all of its steps, with tier, cost, cache and the reason of every move.
"""

from typing import Annotated, Any

import msgspec
from litestar import get
from litestar.params import FromPath, QueryParameter
from litestar.response import Response
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.decision import Decision
from classifier.errors import NoTierAllowedError
from classifier.policy.decide import decide
from gateway.admin.resource import Admin, AsCsv, form_time, json_or_csv, names_of, query_page
from gateway.admin.tier_chances import chances_of
from gateway.base.errors import ApiError
from gateway.base.numbers import number
from gateway.base.stores.database import reached
from gateway.edge.asgi import HttpRequest
from gateway.inference.classifier_versions import RoutingRule, rule_of, ruled_by
from gateway.inference.router import RoutingService
from gateway.inference.service import Serving
from gateway.operations.dashboard.html.rendering import Page, back_to, first_request, page, tier_names
from migrations.tables.quality import verifications
from quality.estimates.served import MOST_SESSIONS, SessionRow, StepRow, newest_sessions, steps_of
from quality.records.record import EmbeddingRecord, Record, Recorded
from quality.store.pages import REFUSED, REQUESTS
from quality.store.queries import request_row
from quality.verification.sampling import why_not_sampled


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds from the request's arrival."""

    name: str
    begin_ms: float
    end_ms: float


def stages_of(record: Record) -> list[Stage]:
    """Return the recorded stages in order. Time between routing and the queue was spent on earlier tiers."""
    timings = record.timings
    stages = [Stage(name="Route", begin_ms=0.0, end_ms=timings.route_ms)]
    first = timings.ttft_ms
    if first is not None and timings.queue_ms is not None and timings.prefill_ms is not None:
        queued = max(first - timings.prefill_ms - timings.queue_ms, 0.0)
        read = min(queued + timings.queue_ms, first)
        last = first + (timings.decode_ms or 0.0)
        stages += [
            Stage(name="Queue", begin_ms=queued, end_ms=read),
            Stage(name="Prefill", begin_ms=read, end_ms=first),
            Stage(name="Decode", begin_ms=first, end_ms=last),
            Stage(name="Stream", begin_ms=last, end_ms=max(timings.e2e_ms, last)),
        ]
    elif first is not None:
        stages += [
            Stage(name="To the first token", begin_ms=timings.route_ms, end_ms=first),
            Stage(name="Answer", begin_ms=first, end_ms=timings.e2e_ms),
        ]
    else:
        stages.append(Stage(name="Answer", begin_ms=timings.route_ms, end_ms=timings.e2e_ms))
    return stages


def rerouted(routing: RoutingService, record: Record, quality_target: float) -> Decision | str:
    """Decide again at another quality target, from the recorded probabilities, prices and constraints; or say why that
    is impossible."""
    inputs = record.decision.inputs
    if inputs.prediction.kind == "heuristic":
        rule = RoutingRule.of_heuristic(quality_target)
    else:
        rule = rule_of(routing.classifier, record.request_id, quality_target)
    try:
        return decide(ruled_by(inputs, rule))
    except NoTierAllowedError as error:
        return str(error)


async def verifications_of(database: AsyncEngine, request_id: str) -> list[dict[str, object]]:
    """Return the request's verifications and its user's feedback, by tier; of one that waits without its turn, which
    may be megabytes."""
    shown = [column for column in verifications.c if column.name != "turn"]
    query = select(*shown).where(verifications.c.request_id == request_id).order_by(verifications.c.tier)
    async with database.connect() as connection:
        return [dict(row) for row in (await connection.execute(query)).mappings()]


ROWS = 50
_OF_ANSWERS = ("status", "tier", "requested_model")


class RequestShown(msgspec.Struct, frozen=True, kw_only=True):
    """A record, and its verifications."""

    request: Record
    verifications: list[dict[str, Any]]


class EmbeddingShown(msgspec.Struct, frozen=True, kw_only=True):
    """The record of an embeddings request, which has no verifications."""

    request: EmbeddingRecord
    verifications: list[dict[str, Any]] = []


@get("/requests")
async def show_requests(request: HttpRequest, admin: Admin) -> Response[Any]:
    """A page of the list. Query: as for `/admin/api/requests`, with times as the form writes them (UTC); `request_id`
    redirects to that request; `status=refused` lists refused requests instead, for which `tier` and `requested_model`
    mean nothing. Without a filter the first page says what was refused in the last hour."""
    query = {name: value.strip() for name, value in request.query_params.items() if value.strip()}
    if (wanted := query.pop("request_id", None)) is not None:
        return back_to(f"/admin/requests/{wanted}")
    asked = query | {name: str(form_time(name, query[name])) for name in ("since", "until") if name in query}
    refused = asked.get("status") == "refused"
    if refused:
        asked = {name: value for name, value in asked.items() if name not in _OF_ANSWERS}
    filtered = bool(query.keys() - {"cursor", "limit"})
    # The filters of the list are not those of the refusals of the last hour, which are of all keys.
    recent = None if filtered or "cursor" in query else await admin.operations.live.traffic.look("1h")
    listed = await query_page(admin.database, REFUSED if refused else REQUESTS, {"limit": str(ROWS)} | asked)
    return page(
        request,
        "requests.html",
        "Requests",
        listed=listed,
        asked=asked,
        refused=refused,
        names=await names_of(admin.database, (row["key_id"] for row in listed.rows)),
        recent=recent,
        filtered=filtered,
        tiers=sorted(admin.serving.routing.served.tiers),
        curl=first_request(request),
    )


@get("/requests/{request_id:str}")
async def show_request(request: HttpRequest, request_id: FromPath[str], admin: Admin) -> Response[Any]:
    """The path of one request. Query: `quality`, a target in [0, 1] to repeat the decision for."""
    record = await _record(admin.serving, request_id)
    names = await names_of(admin.database, [record.key_id])
    if isinstance(record, EmbeddingRecord):
        return page(request, "embedding.html", "Request", record=record, names=names)
    wanted = _target(request.query_params.get("quality", "").strip())
    return page(
        request,
        "request.html",
        "Request",
        record=record,
        names=names,
        inputs=record.decision.inputs,
        stages=stages_of(record),
        chances=chances_of(record.decision, tier_names(admin.serving)),
        estimated={spec.number: spec.price.estimated for spec in admin.serving.routing.served.catalog.tiers},
        verified=await reached(verifications_of(admin.database, record.request_id)),
        why_not=why_not_sampled(record),
        wanted=wanted,
        otherwise=None if wanted is None else rerouted(admin.serving.routing, record, wanted),
    )


@get("/requests/{request_id:str}", summary="Show a request")
async def request_figures(
    request_id: FromPath[str], admin: Admin, as_csv: AsCsv
) -> Response[RequestShown | EmbeddingShown]:
    """The record with its decision and verifications, of any caller. As CSV: its row."""
    record = await _record(admin.serving, request_id)
    row = msgspec.to_builtins(request_row(record))
    if isinstance(record, EmbeddingRecord):
        return json_or_csv(as_csv, "request", EmbeddingShown(request=record), list(row), [row])
    verified = await reached(verifications_of(admin.database, record.request_id))
    return json_or_csv(as_csv, "request", RequestShown(request=record, verifications=verified), list(row), [row])


async def _record(serving: Serving, request_id: str) -> Recorded:
    record = await reached(serving.records.find(request_id))
    if record is None:
        raise ApiError(404, f"No request {request_id[:128]!r} is recorded.", code="request_not_found")
    return record


def _target(text: str) -> float | None:
    return number(text, "quality", 0, 1) if text else None


REQUESTS_PAGE = Page(title="Requests", path="/requests", handlers=(show_requests, show_request))


SessionLimit = Annotated[int, QueryParameter(ge=1, le=MOST_SESSIONS, description="How many sessions.")]


class SessionsShown(msgspec.Struct, frozen=True, kw_only=True):
    """The sessions with the newest steps, newest first; and which pair of tiers serves the sessions of each client, by
    the work with a known end among the newest steps."""

    sessions: list[SessionRow]


class SessionShown(msgspec.Struct, frozen=True, kw_only=True):
    """One session's steps, oldest first, and their sums in US dollars."""

    session: str
    cost_usd: float
    strongest_usd: float
    """The cost on the strongest tier alone, with its caches."""
    steps: list[StepRow]


async def sessions_shown(serving: Serving, limit: int) -> SessionsShown:
    """Return the newest sessions. Raises `ApiError` 503."""
    return SessionsShown(sessions=await reached(newest_sessions(serving.database, limit)))


async def session_shown(serving: Serving, session: str) -> SessionShown:
    """Return one session. Raises `ApiError` 404 and 503."""
    # PostgreSQL can compare with no text that has NUL, and no digest has it.
    steps = [] if "\0" in session else await reached(steps_of(serving.database, session))
    if not steps:
        raise ApiError(404, f"No session {session[:64]!r} is stored.", code="session_not_found")
    cost, strongest = sum(step.cost_usd for step in steps), sum(step.strongest_usd for step in steps)
    return SessionShown(session=session, cost_usd=cost, strongest_usd=strongest, steps=steps)


@get("/sessions", summary="List agents' sessions")
async def list_sessions(admin: Admin, as_csv: AsCsv, limit: SessionLimit = 50) -> Response[SessionsShown]:
    """Those with the newest steps."""
    shown = await sessions_shown(admin.serving, limit)
    return json_or_csv(as_csv, "sessions", shown, SessionRow.__struct_fields__, shown.sessions)


@get("/sessions/{session:str}", summary="Show an agent's session")
async def show_session(session: FromPath[str], admin: Admin, as_csv: AsCsv) -> Response[SessionShown]:
    """Its newest 1,000 steps, oldest first, with tier, cost, cache and reason of each."""
    shown = await session_shown(admin.serving, session)
    return json_or_csv(as_csv, "session", shown, StepRow.__struct_fields__, shown.steps)


@get("/sessions")
async def show_sessions_page(request: HttpRequest, admin: Admin, limit: SessionLimit = 50) -> Response[Any]:
    """Query: `limit`, as for `/v1/admin/sessions`."""
    shown = await sessions_shown(admin.serving, limit)
    names = await names_of(admin.database, (row.key_id for row in shown.sessions))
    return page(request, "sessions.html", "Sessions", shown=shown, sessions=shown.sessions, names=names)


@get("/sessions/{session:str}")
async def show_session_page(request: HttpRequest, session: FromPath[str], admin: Admin) -> Response[Any]:
    """The timeline of one session."""
    shown = await session_shown(admin.serving, session)
    return page(request, "session.html", "Session", shown=shown, most=max(step.cost_usd for step in shown.steps))


SESSIONS_PAGE = Page(title="Sessions", path="/sessions", handlers=(show_sessions_page, show_session_page))
