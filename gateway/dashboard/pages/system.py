"""The system page: the services that the gateway depends on, and what happens without each."""

from typing import Any

from litestar import get
from litestar.response import Response

from gateway.dashboard.page import Page
from gateway.dashboard.rendering import page
from gateway.protocols.http_request import HttpRequest
from gateway.running import operations_of
from gateway.usecases.system_state import system_state


@get("/system")
async def show_system_page(request: HttpRequest) -> Response[Any]:
    """As `/admin/api/system`."""
    return page(request, "system.html", "System", state=await system_state(operations_of(request)))


SYSTEM_PAGE = Page(title="System", path="/system", handlers=(show_system_page,))
