"""The HTTP server around the application: uvicorn, with start and stop messages."""

import asyncio
import logging
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any, Final

import click
import uvicorn
from litestar import Litestar
from litestar.types import ASGIApp, Receive, Scope, Send
from uvicorn.config import STARTUP_FAILURE

from gateway.app import HttpApp, create_app
from gateway.base.configuration import catalog_reason
from gateway.base.footprint import LastingObjects
from gateway.base.settings import Settings, SettingsError
from gateway.base.terminal import broken
from gateway.edge.asgi import UnderRoot
from gateway.edge.http_protocol import BoundedHttpProtocol
from gateway.edge.proxies import TrustedProxies, root_path
from gateway.edge.websocket_protocol import BoundedWebSocketProtocol
from gateway.http import http_app
from gateway.operations.running import OPERATIONS
from gateway.processes.announcement import (
    ServerStartError,
    ServerStoppedError,
    admin_key_text,
    problems_text,
    ready_text,
    start_text,
    tell_service_manager,
    url_of,
)
from gateway.processes.event_loop import (
    CLOSE_SECONDS,
    ENOUGH_FILES,
    THREADS_SECONDS,
    ExitDeadline,
    PacedServer,
    new_loop,
    room_for_connections,
)
from gateway.processes.start_checks import bound_sockets, require_port, warn_of_settings
from gateway.runtime.peers import WorkerIdentity
from gateway.tenancy.guard import ACCESS
from inference_core.transport.client import CoreClient
from tiers.remote.certificates import require_authorities

log = logging.getLogger(__name__)

# Files that a process opens besides callers' connections: database, journal, models, sockets of other processes.
_FILES_OF_OUR_OWN = 256
_MOST_FILES = 1 << 20
_ACCEPTED_SECONDS = 0.05
# How long answers that are ended with an error may take to send it, before their tasks are cancelled.
_LAST_EVENTS_SECONDS = 2
# Every half a minute.
_LOOK_TICKS = 300
# This implementation waits for a slow reader, with limits. Frames hold a few tokens, so compression would cost more
# than it saves, and 64 KiB per connection; without inflation a message has the size that was received.
WEBSOCKETS: Final[dict[str, Any]] = {"ws": BoundedWebSocketProtocol, "ws_per_message_deflate": False}


class AnnouncedServer(uvicorn.Server):
    """A server that prints its address and a first request once it is ready; of several, the supervisor prints it.

    After a first signal it serves for `unready_seconds` with readiness off, and then drains; a second one ends it at
    once. A requested stop ends the process with status 0. SIGINT closes idle connections at once: somebody waits.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        worker: WorkerIdentity | None,
        ready: Callable[[str, int], str],
        *,
        unready: Callable[[], None] = lambda: None,
        unready_seconds: float = 0.0,
    ) -> None:
        super().__init__(config)
        self._worker, self._ready = worker, ready
        self._unready, self._unready_seconds = unready, unready_seconds
        self.exit_deadline = ExitDeadline()
        self._admin_key: str | None = None
        self._was_interrupted = False
        self._lasting = LastingObjects()

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until a signal, on an event loop that looks up names itself."""
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(self.serve(sockets=sockets))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Override uvicorn's, which would raise the signal again at the end."""
        self.force_exit = self.should_exit
        self.should_exit = True
        self._was_interrupted = sig == signal.SIGINT

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down as uvicorn does, after load balancers have had time to notice that it is unready."""
        if self._worker is None:
            tell_service_manager("STOPPING=1")
        self._unready()
        patience = time.monotonic() + self._unready_seconds
        # Polled: a signal handler sets it.
        while time.monotonic() < patience and not self.force_exit:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        drain = 0 if self._was_interrupted else self.config.timeout_graceful_shutdown or 0
        self.config.timeout_keep_alive = min(self.config.timeout_keep_alive, drain // 2)
        for server in self.servers:
            server.close()
        # Connections that were accepted just before are then among those that `shutdown` calls.
        await asyncio.sleep(_ACCEPTED_SECONDS)
        if self.config.timeout_graceful_shutdown is not None:
            asyncio.get_running_loop().call_later(self.config.timeout_graceful_shutdown, self._end_unfinished)
            self.config.timeout_graceful_shutdown += _LAST_EVENTS_SECONDS
        await super().shutdown(sockets)
        if not self.force_exit:
            self.exit_deadline.status = 0
            self.exit_deadline.begin(THREADS_SECONDS)

    def _end_unfinished(self) -> None:
        """End what is still answered with an error in the form of its API."""
        protocols = [
            protocol for protocol in self.server_state.connections if isinstance(protocol, BoundedHttpProtocol)
        ]
        if ended := sum([protocol.end_unfinished() for protocol in protocols]):
            log.warning("%d answers did not end in time and are ended with an error", ended)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start as uvicorn does, then print the announcement."""
        # Its default would end the process, and every answer with it.
        asyncio.get_running_loop().add_signal_handler(
            signal.SIGUSR2, log.warning, "SIGUSR2 changes nothing here: it is for `aio serve --gateway-workers N`"
        )
        try:
            await super().startup(sockets=sockets)
        except OSError as error:
            # Another server began to listen there since the port was looked at.
            log.error("cannot listen: %s", error)
            await self.lifespan.shutdown()
            sys.exit(STARTUP_FAILURE)
        if self.started and (room := room_for_connections()) is not None:
            self._accept_at_most(room)
        self._lasting.start()
        if self.started and self.servers and self._worker is None:
            click.echo(self._ready(*self._address))
            tell_service_manager("READY=1", f"STATUS=Listening on {url_of(*self._address)}")
        if self.started:
            self.print_admin_key()

    async def on_tick(self, counter: int) -> bool:
        """Do what uvicorn does ten times a second, and look for lasting objects where no request runs."""
        if counter % _LOOK_TICKS == 0 and not self.server_state.tasks:
            self._lasting.look()
        return await super().on_tick(counter)

    def _accept_at_most(self, room: int) -> None:
        log.warning(
            "few open files are allowed (ulimit -n), so %d connections are served at once and others wait: "
            "allow %d files",
            room,
            ENOUGH_FILES,
        )
        make: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        protocol = partial(make, config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
        connections, servers = self.server_state.connections, self.servers
        self.servers = [PacedServer(s, protocol, connections, room) for server in servers for s in server.sockets]  # type: ignore[misc]
        for server in servers:
            server.close()

    def show_admin_key(self, key: str) -> None:
        """Print a new admin key on the console only: now, or below the announcement."""
        self._admin_key = key
        if self.started:
            self.print_admin_key()

    def print_admin_key(self) -> None:
        """Print the key given to `show_admin_key` if it was not printed yet."""
        if self._admin_key is not None:
            key, self._admin_key = self._admin_key, None
            click.echo(admin_key_text(key, url_of(*self._address)))
            sys.stdout.flush()

    @property
    def _address(self) -> tuple[str, int]:
        """The address; before it listens, the configured one."""
        if not getattr(self, "servers", None):
            return self.config.host, self.config.port
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return host, port


class ExplainedStart:
    """The application; a failed start is kept for the caller instead of being logged as a traceback."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.failure: BaseException | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass everything on, except the text of a failed start."""
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
    worker: WorkerIdentity | None = None,
    *,
    cores: Mapping[str, CoreClient] | None = None,
    http: HttpApp = http_app,
    ready: Callable[[str, int], str] | None = None,
    administers: bool = True,
) -> None:
    """Serve until a signal, alone or as a `worker` among several processes of one port. `cores`: clients of the
    catalogue's cores, made before; else they are made here. `http` makes the application, `ready` another
    announcement than `ready_text`. If it `administers`, it makes the first admin key if there is none.

    Raises `SettingsError`, `CatalogError`, the error that kept a part from starting, or `ServerStoppedError`.
    """

    def show_admin_key(key: str) -> None:
        server.show_admin_key(key)

    def load_failed(core: str, error: Exception) -> None:
        # Before the start, its caller says why there is none.
        if server.started:
            log.error("%s cannot be loaded, so the server stops: %s", core, error)
        app.failure = error
        server.should_exit = True

    require_authorities()
    if worker is None:
        require_port(settings.host, settings.port)
    litestar = create_app(
        settings,
        cores=cores,
        worker=worker,
        http=http,
        show_admin_key=show_admin_key if administers else None,
        load_failed=load_failed,
    )
    app = ExplainedStart(_below_its_path(litestar, settings))
    if worker is None:
        click.echo(broken(start_text(settings, catalog_reason(settings))))
        sys.stdout.flush()
        warn_of_settings(settings)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=partial(  # type: ignore[arg-type]
            BoundedHttpProtocol,
            patience=settings.request_seconds,
            most=connections_allowed(settings.max_connections),
            head_limit=settings.head_limit,
        ),
        ws_max_size=settings.body_limit,
        **WEBSOCKETS,
        lifespan="on",
        log_config=None,
        access_log=False,
        # Only AIO_TRUSTED_PROXIES decides whose headers are believed; uvicorn would believe every local process.
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=settings.drain_seconds,
    )

    def unready() -> None:
        operations = litestar.state.get(OPERATIONS)
        if operations is not None:
            operations.readiness.begin_shutdown(settings.unready_seconds + settings.drain_seconds)
        server.exit_deadline.begin(settings.unready_seconds + settings.drain_seconds + CLOSE_SECONDS)

    def announcement(host: str, port: int) -> str:
        operations = litestar.state.get(OPERATIONS)
        problems = {} if operations is None else operations.readiness.problems
        if ready is not None:
            return f"{ready(host, port)}\n{problems_text(problems)}"
        asks = operations.access.tenancy.directory.asks_for_keys if operations is not None and administers else None
        return ready_text(host, port, asks_for_keys=asks, problems=problems)

    server = AnnouncedServer(config, worker, announcement, unready=unready, unready_seconds=settings.unready_seconds)
    if worker is None:
        listeners = bound_sockets(settings.host, settings.port)
    else:
        listeners = [socket.socket(fileno=descriptor) for descriptor in worker.listeners]
    try:
        with suppress(KeyboardInterrupt, SystemExit):
            server.run(listeners)
    finally:
        # A start may fail after the key was stored, and the key cannot be shown again.
        server.print_admin_key()
    if app.failure is not None:
        raise app.failure
    if not server.started:
        raise ServerStartError(f"cannot listen on {settings.host}, port {settings.port}; the log says why")
    if server.force_exit:
        raise ServerStoppedError("stopped by a second signal; running answers were aborted")


def _below_its_path(app: Litestar, settings: Settings) -> ASGIApp:
    """Return the application, aware of the path below which a proxy serves it. Raises `SettingsError`."""
    root = root_path(settings.root_path)
    if root is None:
        raise SettingsError(
            f"AIO_ROOT_PATH: AIO cannot be served below the path {settings.root_path!r:.64}; an example is '/ai'"
        )

    def of_request(scope: Scope) -> str:
        client, access = scope.get("client"), app.state.get(ACCESS)
        if root or access is None:
            return root
        proxies: TrustedProxies = access.proxies
        return proxies.root(None if client is None else client[0], scope["headers"])

    return UnderRoot(app, of_request) if root or settings.trusted_proxies else app


def connections_allowed(wanted: int | None) -> int:
    """Return how many connections this process may accept: `wanted`, or the open-file limit, two files per connection.

    Raises the soft limit of open files to the hard one. With few files `PacedServer` accepts no more than there is room
    for, so nothing else does.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if files > soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    allowed = files if files < ENOUGH_FILES else (files - _FILES_OF_OUR_OWN) // 2
    if wanted is not None and wanted > allowed:
        log.warning("%d connections are configured, but %d open files allow %d", wanted, files, allowed)
    return allowed if wanted is None else min(wanted, allowed)
