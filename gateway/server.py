"""The HTTP server around the application: uvicorn, and what a newcomer reads while it starts."""

import socket
import sys
from contextlib import suppress
from typing import Any

import click
import uvicorn
from litestar.types import ASGIApp, Receive, Scope, Send

from gateway.app import create_app
from gateway.settings import Settings

FAILURE_POLICY = {
    "database": "away: requests are served, records wait in the journal, nothing is lost",
    "classifier": "fails: prompts are routed by length",
    "tier": "fails before its first token: the next tier up answers, once; after it: an error event",
    "core": "gone: other tiers answer, or 503 with Retry-After; a gateway process reconnects by itself",
    "journal disk": "stalls: requests are served, records beyond 64 MiB are refused and counted",
}


class ServerStartError(RuntimeError):
    """The server did not come up; the message or the log before it says why."""


class AnnouncedServer(uvicorn.Server):
    """A server that says where it listens and what to try, once it does."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start as uvicorn does, then print."""
        await super().startup(sockets=sockets)
        if self.started and self.servers:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            click.echo(ready_text(host, port))


def ready_text(host: str, port: int) -> str:
    """Where the gateway listens and a first request."""
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104 - only compared
    url = f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"
    body = '{"model": "auto", "messages": [{"role": "user", "content": "What is the capital of France?"}]}'
    return (
        f"\nAIO is ready on {url}  (API: {url}/v1, documentation: {url}/docs, metrics: {url}/metrics)\nTry:\n\n"
        f"  curl -si {url}/v1/chat/completions -H 'Content-Type: application/json' \\\n    -d '{body}'\n"
    )


def policy_text() -> str:
    """What happens when a dependency fails, one line each."""
    return "When something fails:\n" + "\n".join(f"  {name}: {policy}" for name, policy in FAILURE_POLICY.items())


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


def run_server(settings: Settings) -> None:
    """Serve until a signal. Raises `SettingsError`, `CatalogError`, or whatever kept a part from starting."""
    app = ExplainedStart(create_app(settings))
    click.echo(f"catalogue: {settings.catalog}   role: {settings.role}   data: {settings.data_path}")
    click.echo(policy_text())
    sys.stdout.flush()
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        loop="uvloop" if sys.platform != "win32" else "asyncio",
        http="httptools",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=settings.drain_seconds,
    )
    server = AnnouncedServer(config)
    # After its shutdown uvicorn raises the signal again; to have been interrupted is no failure.
    with suppress(KeyboardInterrupt, SystemExit):
        server.run()
    if app.failure is not None:
        raise first_cause(app.failure)
    if not server.started:
        raise ServerStartError(f"cannot listen on {settings.host}:{settings.port}; the log says why")


def first_cause(error: BaseException) -> BaseException:
    """What began a failure: the first error of a group, and of those what it came from."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error if error.__cause__ is None else first_cause(error.__cause__)
