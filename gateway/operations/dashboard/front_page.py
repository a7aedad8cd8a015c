"""`GET /`: a page for a person, or JSON for a program, that says whether the gateway is ready and where to go on."""

from typing import Any

import msgspec
from litestar import get, head
from litestar.response import Response

from gateway import __version__
from gateway.base.errors import ApiError
from gateway.edge.asgi import HttpRequest, OnceRouter
from gateway.edge.proxies import host_is_allowed
from gateway.inference.service import Serving
from gateway.operations.dashboard.html.first_request import address, first_request
from gateway.operations.dashboard.html.rendering import HEADERS, page
from gateway.operations.running import operations_of
from gateway.operations.usecases.health import health_of
from gateway.tenancy.access.admin_guard import session_caller
from gateway.tenancy.access.guard import Access, admit_visitor


class FrontTier(msgspec.Struct, frozen=True, kw_only=True):
    """A tier by its names, and whether it takes requests now."""

    tier: int
    name: str
    model: str
    healthy: bool


class FrontPage(msgspec.Struct, frozen=True, kw_only=True):
    """`status` and `problems` as of `/health/ready`. `tiers`: None for callers who may not see the models. `curl`: a
    first request."""

    name: str = "AIO gateway"
    version: str = __version__
    status: str
    problems: dict[str, str]
    tiers: list[FrontTier] | None
    docs: str
    dashboard: str
    base_url: str
    curl: str


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
