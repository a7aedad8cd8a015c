"""The system page: the services that the gateway depends on, and what happens without each."""

from typing import Any

from litestar import get
from litestar.response import Response

from gateway.edge.asgi import HttpRequest
from gateway.operations.dashboard.html.page import Page
from gateway.operations.dashboard.html.rendering import page
from gateway.operations.running import operations_of
from gateway.operations.usecases.system_state import system_state


@get("/system")
async def show_system_page(request: HttpRequest) -> Response[Any]:
    """As `/admin/api/system`."""
    return page(request, "system.html", "System", state=await system_state(operations_of(request)))


SYSTEM_PAGE = Page(title="System", path="/system", handlers=(show_system_page,))
