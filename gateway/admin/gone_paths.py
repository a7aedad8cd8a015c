"""Paths that earlier commits answered, each refused with the one that took its place."""

from typing import Any

from litestar import get, route
from litestar.response import Response

from gateway.base.errors import ApiError
from gateway.edge.asgi import HttpRequest

_REPORT = {
    "/admin/api/costs": "cost.costs",
    "/admin/api/learning": "help.learning",
    "/admin/api/shadow": "worth.observed",
    "/admin/api/worth": "worth",
    "/admin/api/routing/curve": "help.targets",
    "/admin/api/routing/first-day": "help.targets",
    "/admin/api/routing/kinds": "quality.kinds",
    "/admin/api/routing/preview": "help.targets",
    "/admin/api/routing/reliability": "quality.calibration",
    "/admin/api/routing/tiers": "quality.tiers",
    "/admin/api/routing/traffic": "cost.costs",
}
"""Endpoints that became fields of the report."""

_KNOBS = {
    "/v1/admin/knobs": "/v1/admin/knobs/core",
    "/v1/admin/routing": "/v1/admin/knobs/routing",
    "/v1/admin/cache": "/v1/admin/knobs/cache",
    "/v1/admin/batches": "/v1/admin/knobs/batches",
    "/v1/admin/replicas": "/v1/admin/knobs/replicas",
}
"""Second paths of knobs."""

GONE_PATHS = {
    **{path: f"its figures are {field!r} of GET /admin/api/report" for path, field in _REPORT.items()},
    **{path: f"the same resource is {now}" for path, now in _KNOBS.items()},
}


def _refuse(request: HttpRequest) -> Response[Any]:
    path = request.scope["path"].rstrip("/")
    raise ApiError(410, f"{request.method} {path} is gone: {GONE_PATHS[path]}.", code="endpoint_gone")


@get([path.removeprefix("/admin/api") for path in _REPORT], include_in_schema=False)
async def refuse_report(request: HttpRequest) -> Response[Any]:
    """Say where the figures are now."""
    return _refuse(request)


@route([path.removeprefix("/v1/admin") for path in _KNOBS], http_method=["GET", "PATCH"], include_in_schema=False)
async def refuse_knobs(request: HttpRequest) -> Response[Any]:
    """Say where the knobs are now."""
    return _refuse(request)
