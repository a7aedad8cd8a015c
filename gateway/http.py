"""The litestar application around running parts: routes, guard, error envelope, limits, documentation."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from litestar import Litestar
from litestar.config.cors import CORSConfig
from litestar.datastructures import State
from litestar.exceptions import NotFoundException
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.response import Response

from gateway import __version__
from gateway.base.errors import envelope_response
from gateway.base.footprint.unused_modules import without_plugins
from gateway.base.settings import Settings
from gateway.batches.api.batches import cancel_batch, create_batch, list_batches, show_batch
from gateway.batches.api.files import delete_file, list_files, show_content, show_file, upload_file
from gateway.edge.docs_page import DocsPage, docs_router
from gateway.edge.http_request import HttpRequest
from gateway.edge.router import OnceRouter
from gateway.inference.api.aio.feedback import give_feedback
from gateway.inference.api.aio.records import show_record
from gateway.inference.api.aio.route import route
from gateway.inference.api.messages.count_tokens import count_tokens
from gateway.inference.api.messages.errors import is_messages_path, messages_failure
from gateway.inference.api.messages.messages import messages
from gateway.inference.api.openai.chat_socket import chat_socket
from gateway.inference.api.openai.completions import chat_completions, completions
from gateway.inference.api.openai.embeddings import embeddings
from gateway.inference.api.openai.models import list_models, show_model
from gateway.inference.api.openai.tokenize import detokenize, tokenize
from gateway.inference.api.responses.create import responses
from gateway.inference.api.responses.stored import (
    delete_response,
    list_input_items,
    refuse_other_endpoints,
    show_response,
)
from gateway.operations.api.adapters import load_adapter, show_adapters, unload_adapter
from gateway.operations.api.batches import change_batches, show_batches
from gateway.operations.api.budgets import delete_budget, list_budgets, put_budget
from gateway.operations.api.cache import change_cache, show_cache
from gateway.operations.api.costs import show_costs
from gateway.operations.api.health import live, metrics, ready
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
from gateway.tenancy.access.guard import admit


def _failure(request: HttpRequest, error: Exception) -> Response[Any]:
    """Return the envelope, of the path's API; a browser that opens an unknown page gets a page."""
    path: str = request.scope["path"]
    if is_messages_path(path):
        return messages_failure(request, error)
    lost = isinstance(error, NotFoundException) and path.startswith("/admin/") and not path.startswith("/admin/api")
    return failure_page(request, error) if lost else envelope_response(request, error)


Lifespan = Callable[[Litestar], AbstractAsyncContextManager[None]]


def http_app(settings: Settings, lifespan: Lifespan) -> Litestar:
    """The application; `lifespan` puts what the endpoints use into its state before the first request."""
    v1 = OnceRouter(
        "/v1",
        route_handlers=[
            chat_completions,
            completions,
            embeddings,
            responses,
            messages,
            count_tokens,
            show_response,
            delete_response,
            list_input_items,
            refuse_other_endpoints,
            list_models,
            show_model,
            route,
            show_record,
            give_feedback,
            tokenize,
            detokenize,
            upload_file,
            list_files,
            show_file,
            show_content,
            delete_file,
            create_batch,
            list_batches,
            show_batch,
            cancel_batch,
        ],
        guards=[admit],
    )
    # The same paths as vLLM.
    unversioned = OnceRouter("/", route_handlers=[tokenize, detokenize], guards=[admit], include_in_schema=False)
    # It admits its callers itself: a browser's key comes with the first message.
    sockets = OnceRouter("/v1", route_handlers=[chat_socket])
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
    origins = [origin.strip() for origin in settings.cors_origins.split(",") if origin.strip()]
    with without_plugins():
        return Litestar(
            route_handlers=[
                v1,
                unversioned,
                sockets,
                admin,
                quality,
                tenancy,
                front_router(),
                *dashboard_routers(),
                live,
                ready,
                metrics,
            ],
            lifespan=[lifespan],
            state=State(),
            exception_handlers={Exception: _failure},
            request_max_body_size=settings.body_limit,
            cors_config=CORSConfig(allow_origins=origins) if origins else None,
            openapi_config=OpenAPIConfig(
                title="AIO gateway",
                version=__version__,
                description="An OpenAI-compatible gateway that answers with the cheapest tier that is good enough.",
                openapi_router=docs_router("/docs"),
                render_plugins=[DocsPage(), JsonRenderPlugin()],
                use_handler_docstrings=True,
            ),
            logging_config=None,
            debug=False,
        )


def worker_app(settings: Settings, lifespan: Lifespan) -> Litestar:
    """Return the application of a process that only answers lines of batches: probes and metrics."""
    with without_plugins():
        return Litestar(
            route_handlers=[live, ready, metrics],
            lifespan=[lifespan],
            state=State(),
            exception_handlers={Exception: envelope_response},
            openapi_config=None,
            logging_config=None,
            debug=False,
        )
