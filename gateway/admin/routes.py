"""The endpoints and pages that operate a gateway, in the order of the dashboard's navigation."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from litestar import Router
from litestar.di import Provide
from litestar.exceptions import NotFoundException, ValidationException
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.spec import Operation
from litestar.params import QueryParameter
from litestar.response import Response
from litestar.types import Guard

from gateway.admin.alerts import ALERT_ENDPOINTS, show_alerts_page, test_from_page
from gateway.admin.core import CORE_ENDPOINTS, CORE_PAGE
from gateway.admin.experiments import EXPERIMENT_ENDPOINTS, EXPERIMENTS_PAGE
from gateway.admin.gone_paths import refuse_knobs, refuse_report
from gateway.admin.keys import KEY_ENDPOINTS, KEYS_PAGE
from gateway.admin.knobs import KNOB_ENDPOINTS
from gateway.admin.labels import LABEL_ENDPOINTS
from gateway.admin.overview import OVERVIEW_PAGE, front_router, overview_figures, show_slo
from gateway.admin.quality import QUALITY_ENDPOINTS, QUALITY_PAGE
from gateway.admin.requests import REQUESTS_PAGE, SESSIONS_PAGE, list_sessions, request_figures, show_session
from gateway.admin.resource import admin_context
from gateway.admin.routing import ROUTING_PAGE, show_report
from gateway.admin.system import SYSTEM_PAGE, TIER_ENDPOINTS, show_system
from gateway.admin.traffic import show_traffic
from gateway.admin.tryout import TRY_PAGE
from gateway.admin.users import USERS_PAGE, erase_user, list_users
from gateway.admin.versions import VERSION_ENDPOINTS
from gateway.base.errors import envelope_response
from gateway.edge.asgi import HttpRequest, OnceRouter
from gateway.edge.openapi import TypedOperation
from gateway.inference.api.signatures import JsonStruct, invalid_parameter, parameter_refusal
from gateway.operations.dashboard.html.rendering import OPT, CompiledTemplates, Page, failure_page, static_file
from gateway.operations.dashboard.sign_in.login import show_login, sign_in, sign_out
from gateway.operations.dashboard.sign_in.single_sign_on import leave_for_provider, return_from_provider
from gateway.tenancy.admin_guard import admit_admin, admit_page
from gateway.tenancy.guard import admit_visitor

PAGES: tuple[Page, ...] = (
    OVERVIEW_PAGE,
    TRY_PAGE,
    ROUTING_PAGE,
    REQUESTS_PAGE,
    SESSIONS_PAGE,
    QUALITY_PAGE,
    EXPERIMENTS_PAGE,
    CORE_PAGE,
    KEYS_PAGE,
    USERS_PAGE,
    SYSTEM_PAGE,
)


def dashboard_routers() -> list[OnceRouter]:
    """Routers under `/admin`: the pages, which require a session, and the sign-in, which does not."""
    inside = [sign_out, show_alerts_page, test_from_page, *(handler for page in PAGES for handler in page.handlers)]
    outside = [show_login, sign_in, leave_for_provider, return_from_provider, static_file]
    compiled = CompiledTemplates()
    return [_router(inside, [admit_page], compiled), _router(outside, [admit_visitor], compiled)]


def _router(handlers: Sequence[HTTPRouteHandler], guards: Sequence[Guard], compiled: CompiledTemplates) -> OnceRouter:
    return OnceRouter(
        "/admin",
        route_handlers=handlers,
        guards=guards,
        before_request=compiled,
        dependencies=SHARED,
        exception_handlers={Exception: failure_page, ValidationException: _parameter_page},
        include_in_schema=False,
        opt={OPT: PAGES},
    )


def _parameter_page(request: HttpRequest, error: ValidationException) -> Response[Any]:
    return failure_page(request, parameter_refusal(request, error))


def failure(request: HttpRequest, error: Exception) -> Response[Any]:
    """Return the error envelope; a browser that opens an unknown page gets a page."""
    path: str = request.scope["path"]
    lost = isinstance(error, NotFoundException) and path.startswith("/admin/") and not path.startswith("/admin/api")
    return failure_page(request, error) if lost else envelope_response(request, error)


def api_router(path: str, handlers: Sequence[HTTPRouteHandler], tags: Sequence[str]) -> OnceRouter:
    """Return the router of endpoints that an administrator may ask below `path`."""
    for handler in handlers:
        if handler.operation_class is Operation:
            handler.operation_class = TypedOperation
    return OnceRouter(
        path,
        route_handlers=handlers,
        guards=[admit_admin],
        dto=JsonStruct,
        dependencies=SHARED,
        exception_handlers={ValidationException: invalid_parameter},
        tags=tags,
    )


def _as_csv(
    format: Annotated[
        Literal["json", "csv"], QueryParameter(description="As JSON, or as a file for spreadsheets.")
    ] = "json",
) -> bool:
    return format == "csv"


SHARED = {
    "admin": Provide(admin_context, sync_to_thread=False),
    "as_csv": Provide(_as_csv, sync_to_thread=False),
}
"""What handlers get that name it in their signature."""


def operations_routers() -> list[Router]:
    """The administration's API, the front page and the dashboard, each behind its guard."""
    admin = api_router(
        "/v1/admin",
        [
            *KNOB_ENDPOINTS,
            refuse_knobs,
            *TIER_ENDPOINTS,
            *CORE_ENDPOINTS,
            list_sessions,
            show_session,
            *ALERT_ENDPOINTS,
        ],
        tags=["admin"],
    )
    quality = api_router(
        "/admin/api",
        [
            *QUALITY_ENDPOINTS,
            *LABEL_ENDPOINTS,
            show_report,
            refuse_report,
            show_slo,
            overview_figures,
            show_traffic,
            request_figures,
            show_system,
            *VERSION_ENDPOINTS,
            *EXPERIMENT_ENDPOINTS,
            erase_user,
        ],
        tags=["quality"],
    )
    tenancy = api_router("/admin/api", [*KEY_ENDPOINTS, list_users], tags=["keys"])
    return [admin, quality, tenancy, front_router(), *dashboard_routers()]
