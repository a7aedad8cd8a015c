"""`GET /v1/admin/sessions`: agents' sessions, and one session's steps with the reason of every move."""

from typing import Any

from litestar import get
from litestar.params import FromPath
from litestar.response import Response

from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.inference.service import serving_of
from gateway.operations.csv_export import as_asked
from gateway.operations.usecases.sessions import SessionShown, SessionsShown, session_shown, sessions_shown
from quality.estimates.sessions import SessionRow, StepRow


@get("/sessions", operation_class=describe(None, SessionsShown), summary="List agents' sessions")
async def list_sessions(request: HttpRequest) -> Response[Any]:
    """Those with the newest steps. Query: `limit`, at most 100; `format`, json or csv."""
    shown = await sessions_shown(serving_of(request), request.query_params)
    return as_asked(request, "sessions", shown, SessionRow.__struct_fields__, shown.sessions)


@get("/sessions/{session:str}", operation_class=describe(None, SessionShown), summary="Show an agent's session")
async def show_session(request: HttpRequest, session: FromPath[str]) -> Response[Any]:
    """Its newest 1,000 steps, oldest first, with the tier, cost, cache and reason of each. Query: `format`, json or
    csv."""
    shown = await session_shown(serving_of(request), session)
    return as_asked(request, "session", shown, StepRow.__struct_fields__, shown.steps)
