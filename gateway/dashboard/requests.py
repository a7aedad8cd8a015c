"""The requests page: what was served, newest first, found by tier, key, time or id; and the path of each one."""

from datetime import UTC, datetime
from typing import Any

from litestar import get
from litestar.params import FromPath
from litestar.response import Response

from gateway.api.quality_lists import page_asked_for
from gateway.dashboard.page import Page
from gateway.dashboard.rendering import back_to, page
from gateway.database_reach import reached
from gateway.errors import ApiError, bad_request
from gateway.parts import HttpRequest, parts_of
from quality.listings import REQUESTS

ROWS = 50


@get("/requests")
async def show_requests(request: HttpRequest) -> Response[Any]:
    """A page of the list. Query: as for `/admin/api/requests`, times as the form writes them (UTC); `request_id` goes
    straight to that request."""
    query = {name: value.strip() for name, value in request.query_params.items() if value.strip()}
    if (wanted := query.pop("request_id", None)) is not None:
        return back_to(f"/admin/requests/{wanted}")
    asked = query | {name: str(epoch_of(name, query[name])) for name in ("since", "until") if name in query}
    found = await page_asked_for(request, REQUESTS, {"limit": str(ROWS)} | asked)
    return page(
        request,
        "requests.html",
        "Requests",
        found=found,
        asked=asked,
        filtered=bool(query.keys() - {"cursor", "limit"}),
        tiers=sorted(parts_of(request).routing.tiers),
    )


@get("/requests/{request_id:str}")
async def show_request(request: HttpRequest, request_id: FromPath[str]) -> Response[Any]:
    """One request."""
    record = await reached(parts_of(request).records.find(request_id))
    if record is None:
        raise ApiError(404, f"No request {request_id[:128]!r} is recorded.", code="request_not_found")
    return page(request, "request.html", "Request", record=record)


def epoch_of(name: str, given: str) -> float:
    """Epoch seconds of what a form's time field holds, as UTC; a number is taken as it is. Raises `ApiError` 400."""
    try:
        return float(given)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(given).replace(tzinfo=UTC).timestamp()
    except (ValueError, OverflowError):
        raise bad_request(f"Invalid {name}: {given[:64]!r} is no time.", name, "invalid_value") from None


REQUESTS_PAGE = Page(title="Requests", path="/requests", handlers=(show_requests, show_request))
