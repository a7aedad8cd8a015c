"""The endpoints and pages that operate a gateway, imported when the first of them is asked for."""

from typing import Any

from litestar import Router
from litestar.exceptions import NotFoundException
from litestar.response import Response

from gateway.base.errors import envelope_response
from gateway.edge.asgi import HttpRequest, OnceRouter
from gateway.inference.service import count_refused
from gateway.operations.api.adapters import load_adapter, show_adapters, unload_adapter
from gateway.operations.api.batches import change_batches, show_batches
from gateway.operations.api.budgets import delete_budget, list_budgets, put_budget
from gateway.operations.api.cache import change_cache, show_cache
from gateway.operations.api.costs import show_costs
from gateway.operations.api.keys import (
    end_key,
    limit_key,
    list_keys,
    list_teams,
    make_key,
    make_team,
    renew_key,
    show_key,
)
from gateway.operations.api.knob_profiles import change_profile, show_profiles
from gateway.operations.api.knobs import change_knobs, list_knob_changes, show_knobs
from gateway.operations.api.quality.classifier_commands import begin_trial, end_trial, promote_version, roll_back
from gateway.operations.api.quality.experiments import start_experiment, stop_experiment
from gateway.operations.api.quality.learning import show_learning
from gateway.operations.api.quality.outcome_imports import show_imports, undo_import
from gateway.operations.api.quality.own_labels import reset_own_labels
from gateway.operations.api.quality.quality_lists import (
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
from gateway.operations.api.quality.reviews import list_reviews, review_verification
from gateway.operations.api.quality.routing_views import (
    show_curve,
    show_kinds,
    show_preview,
    show_reliability,
    show_tiers,
    show_traffic,
)
from gateway.operations.api.quality.worth import show_worth
from gateway.operations.api.refusals import forget_refusals, show_refusals
from gateway.operations.api.reload import reload_catalogue
from gateway.operations.api.replicas import change_replicas, show_replicas
from gateway.operations.api.routing import change_routing, show_routing
from gateway.operations.api.sessions import list_sessions, show_session
from gateway.operations.api.shadow import show_shadow
from gateway.operations.api.slo import show_slo
from gateway.operations.api.stats import show_stats
from gateway.operations.api.system import show_system
from gateway.operations.api.users import erase_user
from gateway.operations.dashboard.front_page import front_router
from gateway.operations.dashboard.html.rendering import failure_page
from gateway.operations.dashboard.pages.overview import overview_figures
from gateway.operations.dashboard.pages.requests import request_figures
from gateway.operations.dashboard.pages.users_page import list_users
from gateway.operations.dashboard.site import dashboard_routers
from gateway.tenancy.access.admin_guard import admit_admin


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
            end_key,
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
