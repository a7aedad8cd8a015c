"""The shadow page: what routing would save and how good it would be, the worst cases, and the switch."""

from typing import Any

from litestar import get, post
from litestar.response import Response

from gateway.base.errors import bad_request
from gateway.edge.asgi import HttpRequest
from gateway.inference.service import serving_of
from gateway.operations.dashboard.html.forms import fields_of, reason_of
from gateway.operations.dashboard.html.page import Page
from gateway.operations.dashboard.html.rendering import back_to, page
from gateway.operations.running import operations_of
from gateway.operations.usecases.knobs import order_knobs
from gateway.operations.usecases.shadow import shadow_shown
from gateway.tenancy.access.admin_guard import actor_of

PATH = "/admin/shadow"
# Characters of a text that the page shows; the request's own page has the rest.
_SHOWN = 4000
_DONE = {
    "route": "Routing is on: its decisions hold from now on.",
    "observe": "Observe mode is on: one tier answers everything, and routing's decisions are recorded.",
}


@get("/shadow")
async def show_shadow_page(request: HttpRequest) -> Response[Any]:
    """Query: `since` and `last`, as for `/admin/api/shadow`."""
    serving = serving_of(request)
    report, routing = await shadow_shown(serving, request.query_params), serving.routing
    knobs = routing.knobs.active
    answers = min(knobs.observe_tier or routing.served.strongest, routing.served.strongest)
    return page(request, "shadow.html", "Shadow mode", report=report, knobs=knobs, answers=answers, most=_SHOWN)


@post("/shadow/mode", status_code=200)
async def switch_mode(request: HttpRequest) -> Response[Any]:
    """Switch routing on, or observe it; permanent, for admins only."""
    fields = await fields_of(request)
    mode = fields.get("mode", "")
    if mode not in _DONE:
        raise bad_request(f"Invalid mode: {mode[:64]!r}; allowed: {', '.join(_DONE)}.", "mode", "invalid_value")
    operations = operations_of(request)
    knobs, actor, reason = operations.serving.routing.knobs, actor_of(request), reason_of(fields)
    done = await order_knobs(operations, actor, knobs, {"mode": mode}, reason)
    if not done.changed:
        return back_to(PATH, "Nothing changed: the mode is the same.")
    late = "" if done.recorded else " The database is down: the change is recorded later."
    return back_to(PATH, f"{_DONE[mode]}{late}")


SHADOW_PAGE = Page(title="Shadow", path="/shadow", handlers=(show_shadow_page, switch_mode))
