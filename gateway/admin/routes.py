"""The endpoints and pages that operate a gateway, in the order of the dashboard's navigation; imported when the first
of them is asked for.
"""

from collections.abc import Sequence
from typing import Any

from litestar import Router
from litestar.exceptions import NotFoundException
from litestar.handlers import HTTPRouteHandler
from litestar.response import Response
from litestar.types import Guard

from gateway.admin.alerts import show_alerts, show_alerts_page, test_alerts, test_from_page
from gateway.admin.core import CORE_PAGE, load_adapter, show_adapters, show_stats, unload_adapter
from gateway.admin.costs import SPEND_PAGE, show_costs
from gateway.admin.experiments import EXPERIMENTS_PAGE, start_experiment, stop_experiment
from gateway.admin.first_day import show_first_day
from gateway.admin.keys import (
    KEYS_PAGE,
    delete_budget,
    key_verbs,
    limit_key,
    list_budgets,
    list_keys,
    list_teams,
    make_key,
    make_team,
    put_budget,
    renew_key,
    show_key,
)
from gateway.admin.knobs import (
    change_batches,
    change_cache,
    change_knobs,
    change_profile,
    change_replicas,
    change_routing,
    list_knob_changes,
    show_batches,
    show_cache,
    show_knobs,
    show_profiles,
    show_replicas,
    show_routing,
)
from gateway.admin.labels import list_reviews, reset_own_labels, review_verification, show_imports, undo_import
from gateway.admin.learning import show_learning, show_worth
from gateway.admin.overview import OVERVIEW_PAGE, front_router, overview_figures, show_slo
from gateway.admin.quality import (
    QUALITY_PAGE,
    list_all_batches,
    list_artefacts,
    list_experiments,
    list_refused,
    list_requests,
    list_retrainings,
    list_rollouts,
    list_transitions,
    list_verifications,
    retrain_now,
    show_estimates,
    show_verification,
)
from gateway.admin.requests import REQUESTS_PAGE, SESSIONS_PAGE, list_sessions, request_figures, show_session
from gateway.admin.routing import ROUTING_PAGE, SHADOW_PAGE, show_shadow
from gateway.admin.routing_reports import (
    show_curve,
    show_kinds,
    show_preview,
    show_reliability,
    show_tiers,
    show_traffic,
)
from gateway.admin.system import SYSTEM_PAGE, forget_refusals, reload_catalogue, show_refusals, show_system
from gateway.admin.tryout import TRY_PAGE
from gateway.admin.users import USERS_PAGE, erase_user, list_users
from gateway.admin.versions import begin_trial, end_trial, promote_version, roll_back
from gateway.base.errors import envelope_response
from gateway.edge.asgi import HttpRequest, OnceRouter
from gateway.inference.service import count_refused
from gateway.operations.dashboard.html.rendering import OPT, CompiledTemplates, Page, failure_page, static_file
from gateway.operations.dashboard.sign_in.login import show_login, sign_in, sign_out
from gateway.operations.dashboard.sign_in.single_sign_on import leave_for_provider, return_from_provider
from gateway.tenancy.access.admin_guard import admit_admin, admit_page
from gateway.tenancy.access.guard import admit_visitor

PAGES: tuple[Page, ...] = (
    OVERVIEW_PAGE,
    TRY_PAGE,
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
        exception_handlers={Exception: failure_page},
        include_in_schema=False,
        opt={OPT: PAGES},
    )


def failure(request: HttpRequest, error: Exception) -> Response[Any]:
    """Return the error envelope; a browser that opens an unknown page gets a page. Requests for unknown endpoints of
    callers arrive here, and are counted."""
    path: str = request.scope["path"]
    if path.startswith("/v1/") and not path.startswith("/v1/admin"):
        count_refused(request, error)
    lost = isinstance(error, NotFoundException) and path.startswith("/admin/") and not path.startswith("/admin/api")
    return failure_page(request, error) if lost else envelope_response(request, error)


def operations_routers() -> list[Router]:
    """The administration's API, the front page and the dashboard, each behind its guard."""
    admin = OnceRouter(
        "/v1/admin",
        route_handlers=[
            show_knobs,
            change_knobs,
            list_knob_changes,
            show_profiles,
            change_profile,
            show_replicas,
            change_replicas,
            reload_catalogue,
            show_refusals,
            forget_refusals,
            show_cache,
            change_cache,
            show_routing,
            change_routing,
            show_batches,
            change_batches,
            show_stats,
            list_sessions,
            show_session,
            show_adapters,
            load_adapter,
            unload_adapter,
            show_alerts,
            test_alerts,
        ],
        guards=[admit_admin],
        tags=["admin"],
    )
    quality = OnceRouter(
        "/admin/api",
        route_handlers=[
            list_requests,
            list_refused,
            list_all_batches,
            list_verifications,
            show_verification,
            list_reviews,
            review_verification,
            list_artefacts,
            list_transitions,
            list_retrainings,
            list_rollouts,
            retrain_now,
            show_estimates,
            show_costs,
            show_shadow,
            show_slo,
            overview_figures,
            request_figures,
            show_curve,
            show_first_day,
            show_preview,
            show_reliability,
            show_kinds,
            show_traffic,
            show_learning,
            show_worth,
            show_tiers,
            show_system,
            reset_own_labels,
            show_imports,
            undo_import,
            promote_version,
            roll_back,
            begin_trial,
            end_trial,
            list_experiments,
            start_experiment,
            stop_experiment,
            erase_user,
        ],
        guards=[admit_admin],
        tags=["quality"],
    )
    tenancy = OnceRouter(
        "/admin/api",
        route_handlers=[
            list_keys,
            make_key,
            show_key,
            limit_key,
            renew_key,
            *key_verbs,
            list_teams,
            make_team,
            list_budgets,
            put_budget,
            delete_budget,
            list_users,
        ],
        guards=[admit_admin],
        tags=["keys"],
    )
    return [admin, quality, tenancy, front_router(), *dashboard_routers()]
