"""The HTTP server around the application: uvicorn, and what a newcomer reads while it starts."""

import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import click
import uvicorn
from litestar.types import ASGIApp, Receive, Scope, Send

from gateway.announcement import ServerStartError, policy_text, ready_text
from gateway.app import HttpApp, create_app
from gateway.http import http_app
from gateway.http_protocol import BoundedHttpProtocol, connections_allowed
from gateway.settings import Settings
from gateway.worker_place import WorkerPlace

# The implementation that waits for a slow reader. Frames are a few tokens: compressing them would cost more than it
# saves, and 64 KiB of every connection.
WEBSOCKETS: Final[dict[str, Any]] = {"ws": "websockets-sansio", "ws_per_message_deflate": False}


class AnnouncedServer(uvicorn.Server):
    """A server that says where it listens and what to try, once it does; of several, their supervisor says it."""

    def __init__(self, config: uvicorn.Config, place: WorkerPlace | None, ready: Callable[[str, int], str]) -> None:
        super().__init__(config)
        self._place, self._ready = place, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start as uvicorn does, then print."""
        await super().startup(sockets=sockets)
        if self.started and self.servers and self._place is None:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            click.echo(self._ready(host, port))


class ExplainedStart:
    """The application, with a failure to start kept for the caller instead of logged as a traceback."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.failure: BaseException | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass everything on, but the text of a failed start."""
        if scope["type"] != "lifespan":  # type: ignore[comparison-overlap]
            return await self._app(scope, receive, send)

        async def send_without_traceback(event: Any) -> None:
            await send(event | {"message": ""} if event["type"] == "lifespan.startup.failed" else event)

        try:
            await self._app(scope, receive, send_without_traceback)
        except BaseException as error:
            self.failure = error
            raise


def run_server(
    settings: Settings,
    place: WorkerPlace | None = None,
    *,
    http: HttpApp = http_app,
    ready: Callable[[str, int], str] = ready_text,
) -> None:
    """Serve until a signal, alone or at a `place` among several processes of one port. `http` makes the application,
    `ready` says that it serves.

    Raises `SettingsError`, `CatalogError`, or whatever kept a part from starting.
    """
    app = ExplainedStart(create_app(settings, place=place, http=http))
    if place is None:
        click.echo(f"catalogue: {settings.catalog}   role: {settings.role}   data: {settings.data_path}")
        click.echo(policy_text(settings))
        sys.stdout.flush()
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        loop="uvloop" if sys.platform != "win32" else "asyncio",
        http=partial(  # type: ignore[arg-type]
            BoundedHttpProtocol,
            patience=settings.request_seconds,
            most=connections_allowed(settings.max_connections),
        ),
        ws_max_size=settings.body_limit,
        **WEBSOCKETS,
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=settings.drain_seconds,
    )
    server = AnnouncedServer(config, place, ready)
    inherited = None if place is None else [socket.socket(fileno=place.listener)]
    # After its shutdown uvicorn raises the signal again; to have been interrupted is no failure.
    with suppress(KeyboardInterrupt, SystemExit):
        server.run(inherited)
    if app.failure is not None:
        raise first_cause(app.failure)
    if not server.started:
        raise ServerStartError(f"cannot listen on {settings.host}:{settings.port}; the log says why")


def first_cause(error: BaseException) -> BaseException:
    """What began a failure: the first error of a group, and of those what it came from."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error if error.__cause__ is None else first_cause(error.__cause__)
