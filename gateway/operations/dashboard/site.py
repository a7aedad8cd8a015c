"""The pages of the dashboard, in the order of its navigation, as routers of the gateway's application."""

from collections.abc import Sequence

from litestar.handlers import HTTPRouteHandler
from litestar.types import Guard

from gateway.edge.asgi import OnceRouter
from gateway.operations.dashboard.html.assets import static_file
from gateway.operations.dashboard.html.page import OPT, Page
from gateway.operations.dashboard.html.rendering import CompiledTemplates, failure_page
from gateway.operations.dashboard.pages.core import CORE_PAGE
from gateway.operations.dashboard.pages.experiments import EXPERIMENTS_PAGE
from gateway.operations.dashboard.pages.keys import KEYS_PAGE
from gateway.operations.dashboard.pages.overview import OVERVIEW_PAGE
from gateway.operations.dashboard.pages.quality import QUALITY_PAGE
from gateway.operations.dashboard.pages.requests import REQUESTS_PAGE
from gateway.operations.dashboard.pages.routing import ROUTING_PAGE
from gateway.operations.dashboard.pages.sessions import SESSIONS_PAGE
from gateway.operations.dashboard.pages.shadow import SHADOW_PAGE
from gateway.operations.dashboard.pages.spend import SPEND_PAGE
from gateway.operations.dashboard.pages.system import SYSTEM_PAGE
from gateway.operations.dashboard.pages.users_page import USERS_PAGE
from gateway.operations.dashboard.sign_in.login import show_login, sign_in, sign_out
from gateway.operations.dashboard.sign_in.single_sign_on import leave_for_provider, return_from_provider
from gateway.tenancy.access.admin_guard import admit_page
from gateway.tenancy.access.guard import admit_visitor

PAGES: tuple[Page, ...] = (
    OVERVIEW_PAGE,
    SPEND_PAGE,
    REQUESTS_PAGE,
    SESSIONS_PAGE,
    ROUTING_PAGE,
    SHADOW_PAGE,
    QUALITY_PAGE,
    EXPERIMENTS_PAGE,
    CORE_PAGE,
    KEYS_PAGE,
    USERS_PAGE,
    SYSTEM_PAGE,
)


def dashboard_routers() -> list[OnceRouter]:
    """Routers under `/admin`: the pages, which require a session, and the sign-in, which does not."""
    inside = [sign_out, *(handler for page in PAGES for handler in page.handlers)]
    outside = [show_login, sign_in, leave_for_provider, return_from_provider, static_file]
    compiled = CompiledTemplates()
    return [_router(inside, [admit_page], compiled), _router(outside, [admit_visitor], compiled)]


def _router(handlers: Sequence[HTTPRouteHandler], guards: Sequence[Guard], compiled: CompiledTemplates) -> OnceRouter:
    return OnceRouter(
        "/admin",
        route_handlers=handlers,
        guards=guards,
        before_request=compiled,
        exception_handlers={Exception: failure_page},
        include_in_schema=False,
        opt={OPT: PAGES},
    )
