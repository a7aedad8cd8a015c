"""The system page: what the gateway stands on, and what happens without it."""

from typing import Any

from litestar import get
from litestar.response import Response

from gateway.api.admin.system import MEASUREMENTS
from gateway.api.admin.system_state import system_state
from gateway.dashboard.page import Page
from gateway.dashboard.rendering import page
from gateway.parts import HttpRequest, parts_of
from gateway.reporting.checklist import checklist


@get("/system")
async def show_system_page(request: HttpRequest) -> Response[Any]:
    """As `/admin/api/system` and `/admin/api/checklist`."""
    state = await system_state(parts_of(request))
    return page(request, "system.html", "System", state=state, items=checklist(MEASUREMENTS))


SYSTEM_PAGE = Page(title="System", path="/system", handlers=(show_system_page,))
