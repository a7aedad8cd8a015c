"""The sessions page: agents' sessions, and one session's steps with tier, cost, cache and the reason of every move."""

from typing import Any

from litestar import get
from litestar.params import FromPath
from litestar.response import Response

from gateway.edge.asgi import HttpRequest
from gateway.inference.service import serving_of
from gateway.operations.dashboard.html.page import Page
from gateway.operations.dashboard.html.rendering import page
from gateway.operations.usecases.keys import names_of
from gateway.operations.usecases.sessions import session_shown, sessions_shown


@get("/sessions")
async def show_sessions_page(request: HttpRequest) -> Response[Any]:
    """Query: `limit`, as for `/v1/admin/sessions`."""
    serving = serving_of(request)
    shown = await sessions_shown(serving, request.query_params)
    names = await names_of(serving.database, (row.key_id for row in shown.sessions))
    return page(request, "sessions.html", "Sessions", sessions=shown.sessions, names=names)


@get("/sessions/{session:str}")
async def show_session_page(request: HttpRequest, session: FromPath[str]) -> Response[Any]:
    """The timeline of one session."""
    shown = await session_shown(serving_of(request), session)
    return page(request, "session.html", "Session", shown=shown, most=max(step.cost_usd for step in shown.steps))


SESSIONS_PAGE = Page(title="Sessions", path="/sessions", handlers=(show_sessions_page, show_session_page))
