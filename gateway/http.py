"""The litestar application around running parts: routes, guard, error envelope, limits, documentation."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from litestar import Litestar, Router
from litestar.config.cors import CORSConfig
from litestar.datastructures import State
from litestar.exceptions import MethodNotAllowedException, NotFoundException
from litestar.openapi.config import OpenAPIConfig
from litestar.response import Response

from gateway import __version__
from gateway.admin.health import live, metrics, ready
from gateway.admin.routes import failure, operations_routers
from gateway.base.errors import ApiError, envelope_response
from gateway.base.settings import Settings
from gateway.batches.api.batches import cancel_batch, create_batch, list_batches, show_batch
from gateway.batches.api.files import delete_file, list_files, show_content, show_file, upload_file
from gateway.edge.asgi import HttpRequest, OnceRouter
from gateway.edge.docs_page import DocsPage, SchemaFile, docs_router
from gateway.inference.api.aio import give_feedback, route, show_record
from gateway.inference.api.chat_socket import chat_socket, other_socket
from gateway.inference.api.completions import chat_completions, completions, detokenize, tokenize
from gateway.inference.api.embeddings import embeddings
from gateway.inference.api.gemini import (
    call_model,
    gemini_failure,
    list_gemini_models,
    show_gemini_model,
)
from gateway.inference.api.messages.messages import count_tokens, messages
from gateway.inference.api.messages.schemas import is_messages_path, messages_failure
from gateway.inference.api.models import is_googles, list_models, show_model
from gateway.inference.api.passed.routes import PASSED_ROUTES
from gateway.inference.api.responses.create import compact, count_input, responses
from gateway.inference.api.responses.stored import delete_response, list_input_items, show_response
from gateway.inference.service import count_refused
from gateway.tenancy.guard import admit

_PROBES = (live, ready, metrics)
# Below these paths AIO is operated; all others are callers'.
OPERATED = ("/admin", "/v1/admin", "/docs")

Lifespan = Callable[[Litestar], AbstractAsyncContextManager[None]]


def http_app(settings: Settings, lifespan: Lifespan) -> Litestar:
    """Return the application: the APIs of callers, the administration's API, the dashboard and the documentation of all
    endpoints. `lifespan` puts what the endpoints use into its state before the first request."""
    origins = [origin.strip() for origin in settings.cors_origins.split(",") if origin.strip()]
    return Litestar(
        route_handlers=[*_routers_of_callers(), *operations_routers(), *_PROBES],
        lifespan=[lifespan],
        state=State(),
        exception_handlers={Exception: _failure},
        request_max_body_size=settings.body_limit,
        # No page sends credentials of its own, so that `*` exposes every header.
        cors_config=CORSConfig(allow_origins=origins, expose_headers=["*"]) if origins else None,
        openapi_config=OpenAPIConfig(
            title="AIO gateway",
            version=__version__,
            description="An OpenAI-compatible gateway that chooses the best tier for each request, by quality and "
            "price.",
            openapi_router=docs_router("/docs"),
            render_plugins=[DocsPage(), SchemaFile()],
            use_handler_docstrings=True,
        ),
        logging_config=None,
        debug=False,
    )


def _failure(request: HttpRequest, error: Exception) -> Response[Any]:
    """Return the envelope of the path's API, and count a caller's refused request."""
    path = request.scope["path"]
    if path == "/" or path.startswith(OPERATED):
        return failure(request, error)
    count_refused(request, error)
    if isinstance(error, NotFoundException | MethodNotAllowedException):
        # The router's own, which says no more than that.
        shown = f"{request.scope['method']} {path[:128]}"
        error = ApiError(
            error.status_code, f"There is no {shown} here; /docs lists all endpoints.", headers=error.headers
        )
    if is_googles(request):
        return gemini_failure(request, error)
    is_messages = is_messages_path(path) or (path.startswith("/v1/models") and "anthropic-version" in request.headers)
    return messages_failure(request, error) if is_messages else envelope_response(request, error)


def _routers_of_callers() -> list[Router]:
    v1 = OnceRouter(
        "/v1",
        route_handlers=[
            chat_completions,
            completions,
            embeddings,
            responses,
            compact,
            count_input,
            messages,
            count_tokens,
            *PASSED_ROUTES,
            show_response,
            delete_response,
            list_input_items,
            list_models,
            show_model,
            call_model,
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
    googles = OnceRouter("/v1beta", route_handlers=[call_model, list_gemini_models, show_gemini_model], guards=[admit])
    # The same paths as vLLM.
    unversioned = OnceRouter("/", route_handlers=[tokenize, detokenize], guards=[admit], include_in_schema=False)
    # It admits its callers itself: a browser's key comes with the first message.
    sockets = OnceRouter("/v1", route_handlers=[chat_socket, other_socket])
    return [v1, googles, unversioned, sockets]


def worker_app(settings: Settings, lifespan: Lifespan) -> Litestar:
    """Return the application of a process that only answers lines of batches: probes and metrics."""
    return Litestar(
        route_handlers=_PROBES,
        lifespan=[lifespan],
        state=State(),
        exception_handlers={Exception: envelope_response},
        openapi_config=None,
        logging_config=None,
        debug=False,
    )
