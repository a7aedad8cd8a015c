"""The endpoints of inference: light guards, and imports of nothing but what answers."""

import subprocess
import sys
from importlib.util import find_spec
from typing import Any, cast

import pytest
from litestar import Litestar, Response
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from litestar.types import ASGIApp

from gateway.edge.asgi import HttpRequest
from gateway.inference.api.completions import chat_completions
from gateway.tenancy.guard import InferenceRoute


@pytest.mark.asyncio
async def test_each_guard_in_scope_gets_the_handler_itself_before_the_endpoint_is_asked() -> None:
    seen: list[tuple[str, Any]] = []
    sent: list[Any] = []

    async def outer(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        seen.append(("outer", handler))

    async def inner(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        seen.append(("inner", handler))

    async def said(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"said", "more_body": False})

    @InferenceRoute("/answer", http_method="POST", guards=[inner])
    async def answer(request: HttpRequest) -> ASGIApp:
        seen.append(("endpoint", handler))
        return said

    app = Litestar([answer], guards=[outer], openapi_config=None)
    handler = cast(Any, next(route for route in app.routes if route.path == "/answer")).route_handlers[0]

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/answer", "headers": [], "query_string": b""}
    await app(cast(Any, scope), cast(Any, None), send)

    assert [name for name, _ in seen] == ["outer", "inner", "endpoint"]
    assert all(given is handler for _, given in seen)
    assert sent[1]["body"] == b"said"


async def test_an_error_of_the_endpoint_is_answered_by_the_handlers_in_scope_looked_for_once() -> None:
    sent: list[Any] = []

    def told(request: Any, error: Exception) -> Response[str]:
        return Response(str(error), status_code=418)

    @InferenceRoute("/answer", http_method="POST", exception_handlers={ValueError: told})
    async def answer(request: HttpRequest) -> ASGIApp:
        raise ValueError("no")

    async def send(message: Any) -> None:
        sent.append(message)

    app = Litestar([answer], openapi_config=None)
    scope = {"type": "http", "method": "POST", "path": "/answer", "headers": [], "query_string": b""}
    await app(cast(Any, scope), cast(Any, None), send)
    handler = cast(Any, next(route for route in app.routes if route.path == "/answer")).route_handlers[0]

    assert (sent[0]["status"], sent[1]["body"]) == (418, b"no")
    assert handler.resolve_exception_handlers() is handler.resolve_exception_handlers()


def test_chats_are_served_so() -> None:
    assert isinstance(chat_completions, InferenceRoute)


def test_importing_them_imports_neither_jobs_nor_composition_nor_sign_ins_nor_metrics() -> None:
    modules = (
        *("completions", "embeddings", "models", "chat_socket"),
        *("messages.messages", "responses.create", "responses.stored", "aio"),
    )
    others = ("batches", "app", "admin", "operations", "telemetry", "tenancy.users", "tenancy.admin_guard")
    for name in others:
        assert find_spec(f"gateway.{name}"), name
    program = (
        f"import sys, {', '.join(f'gateway.inference.api.{name}' for name in modules)}, gateway.tenancy.guard\n"
        f"print(*(name for name in {others} if f'gateway.{{name}}' in sys.modules))"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.split() == []
