"""The guards of all endpoints: they name the request, note its arrival, identify the caller, and refuse other sites.

What they use: keys, sign-ins to the dashboard, and proxies whose headers are believed; these say who is at the other
end of a connection, and by which address it reached this server.

Any page may have its reader's browser send forms and texts to any server that the browser can reach, this machine's
included. So the guards look at headers that browsers set and pages cannot choose. Programs that are no browser send
neither `Sec-Fetch-Site` nor `Origin`, and no page of another site knows a key, so neither is hindered.

Guards wait for nothing, but litestar runs a plain function in a thread, so they are coroutines.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from litestar import Request
from litestar.datastructures import State
from litestar.exceptions import InternalServerException
from litestar.exceptions.http_exceptions import RequestEntityTooLarge
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
from litestar.openapi.spec import Operation
from litestar.types import ASGIApp, Empty, ExceptionHandlersMap, Middleware, Receive, Scope, Send

from gateway.base.errors import ApiError
from gateway.base.identity import new_request_id
from gateway.base.inference_request import CALLER, KEYLESS, Caller
from gateway.base.logs import LOG_CONTEXT, LogContext
from gateway.base.settings import Settings
from gateway.edge.asgi import Connection, HttpRequest, root_of
from gateway.edge.proxies import (
    ForwardedClient,
    TrustedProxies,
    authority_of,
    host_is_allowed,
    hostname_of,
    hosts_of,
    is_authority,
    is_loopback_host,
    listens_here_alone,
)
from gateway.tenancy.keys.directory import ADMINISTRATION, KeysUnavailableError, UnknownKeyError
from gateway.tenancy.tenancy import Tenancy

if TYPE_CHECKING:
    from gateway.tenancy.users.sessions import Sessions

KEY_HEADERS = ("x-api-key", "api-key", "x-goog-api-key")
"""In which clients of Anthropic's, Azure's and Google's APIs send their key."""
ACCESS = "access"
"""The key of the app's state."""


@dataclass(frozen=True, slots=True)
class Access:
    """Who may call, and from where."""

    settings: Settings
    tenancy: Tenancy
    sessions: "Sessions"
    proxies: TrustedProxies
    """Proxies whose headers are believed."""


def access_of(connection: Connection) -> Access:
    """Return what the guards of the app that serves `connection` use."""
    access: Access = connection.app.state[ACCESS]
    return access


def client_of(connection: Connection) -> ForwardedClient:
    """Return the client's address, and whether it speaks TLS, as AIO_TRUSTED_PROXIES allows to believe.

    Everything that records, limits or trusts an address asks here. A client of a Unix socket has no address, so that
    none of its headers is believed.
    """
    scope = connection.scope
    client = scope.get("client")
    peer = None if client is None else client[0]
    return access_of(connection).proxies.client(peer, scope["scheme"], scope["headers"])


def site_of(connection: Connection) -> str:
    """Return this server's scheme and authority as the client wrote them, and the path below which a proxy serves it;
    the settings' authority without a valid Host header."""
    settings = access_of(connection).settings
    host = connection.headers.get("host", "").encode("latin-1", "replace")
    authority = (
        host.decode() if host and is_authority(host) else authority_of(hosts_of(settings.host)[0], settings.port)
    )
    return f"{'https' if client_of(connection).https else 'http'}://{authority}{root_of(connection)}"


def cookie_name(connection: Connection, name: str) -> str:
    """Return a cookie's name in this browser. Over TLS it has the prefix `__Host-`, which keeps other hosts of the same
    domain, and plain HTTP, from setting it; below a path of a host `__Secure-`, which keeps plain HTTP from it: the
    other one is for whole hosts."""
    if not client_of(connection).https:
        return name
    return f"__Secure-{name}" if root_of(connection) else f"__Host-{name}"


_GOOGLES_PATHS = ("/v1beta/", "/v1/models")
READING = frozenset({"GET", "HEAD", "OPTIONS"})
_ORIGIN_OF = {
    "API key": "the operator hands them out",
    "admin key": "the gateway printed one at its first start, and 'aio keys create NAME --scope admin' makes another",
}


LARGE_BODY, MOST_HELD = 1 << 22, 1 << 28
"""Bytes of a body from which it counts as large, and of all large ones that a process holds at once."""


class _LargeBodies:
    """How many bytes of large bodies the requests of this process hold, and those of each tenant.

    A tenant's bodies have at most as much room as they leave free: half of it for the only one, a third for each of
    two. So no tenant, and no number of them, takes the room of one that comes later. What was announced and has not
    arrived takes none.
    """

    held = 0
    of_tenant: ClassVar[Counter[str]] = Counter()


class PlainRequest(Request[Any, Any, State]):
    """A request whose whole body is read from the server's messages. litestar reads it through an asynchronous
    generator and looks up its length in headers that it makes again, which takes several times as long."""

    held = 0
    """Bytes that it holds of those that large bodies may have together."""

    async def body(self) -> bytes:
        """The body. Raises `RequestEntityTooLarge` if more than the limit is announced or has arrived, and
        `InternalServerException` if the client leaves before its end."""
        if self._body is Empty:
            self._body = await self._whole()
        return self._body

    def become(self, body: bytes) -> None:
        """Have another body from now on. Raises `ApiError` 503."""
        self.hold(len(body))
        self._body = body

    def let_go(self) -> None:
        """Say that the body is not needed any more."""
        _LargeBodies.held -= self.held
        _LargeBodies.of_tenant[self._tenant] -= self.held
        if not _LargeBodies.of_tenant[self._tenant]:
            del _LargeBodies.of_tenant[self._tenant]
        self.held = 0

    def hold(self, size: int) -> None:
        """Say that `size` bytes of the body are here; a body that is not large needs no room. Raises `ApiError` 503."""
        if size <= max(LARGE_BODY, self.held):
            return
        more, tenant = size - self.held, self._tenant
        if _LargeBodies.of_tenant[tenant] + more > MOST_HELD - _LargeBodies.held - more:
            raise ApiError(
                503,
                f"Bodies of more than {LARGE_BODY} bytes may have {MOST_HELD} bytes together here, and those of one key"
                " or team as much as they leave free. Try again later.",
                code="too_many_large_bodies",
            )
        _LargeBodies.held += more
        _LargeBodies.of_tenant[tenant] += more
        self.held += more

    @property
    def _tenant(self) -> str:
        caller: Caller = self.scope["state"][CALLER]
        return caller.tenant

    async def _whole(self) -> bytes:
        most = self.route_handler.resolve_request_max_body_size()
        announced = self.scope["state"]["headers"].get("content-length")
        if most is not None and announced is not None and int(announced) > most:
            raise RequestEntityTooLarge
        parts: list[bytes] = []
        size, more = 0, True
        while more:
            message: Any = await self.receive()
            if message["type"] == "http.disconnect":
                raise InternalServerException("client disconnected prematurely")
            part = message["body"]
            size += len(part)
            if most is not None and size > most:
                raise RequestEntityTooLarge
            self.hold(size)
            parts.append(part)
            more = message.get("more_body", False)
        self.is_connected = False
        return parts[0] if len(parts) == 1 else b"".join(parts)


class InferenceRoute(HTTPRouteHandler):
    """The decorator of the endpoints with the most requests, each a coroutine that takes the request, and nothing else,
    and returns an ASGI application.

    litestar gives each guard a copy of the handler, looks for a handler's arguments, checks them, asks what kinds of
    request and response these are and what follows a response, all for each request. Here all is known, and guards of
    ours only read the handler: so what litestar wraps in middleware is not its own route, but guards and endpoint.
    """

    _exception_handlers: "ExceptionHandlersMap | None" = None

    def resolve_middleware(self) -> list[Middleware]:
        """Put the guards in scope and the endpoint in place of litestar's route."""
        guards, endpoint = self.resolve_guards(), self.fn

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            request = PlainRequest(scope, receive, send)
            try:
                for guard in guards:
                    await guard(request, self)  # type: ignore[misc]
                response: ASGIApp = await endpoint(request)
                await response(scope, receive, send)
            finally:
                if request.held:
                    request.let_go()

        def in_place(app: ASGIApp) -> ASGIApp:
            return answer

        return [in_place, *super().resolve_middleware()]

    def resolve_exception_handlers(self) -> ExceptionHandlersMap:
        """Those in scope, looked for once."""
        if self._exception_handlers is None:
            self._exception_handlers = super().resolve_exception_handlers()
        return self._exception_handlers


def inference_post(
    path: str, described: type[Operation], summary: str, *, id_prefix: str, id_separator: str = "-"
) -> InferenceRoute:
    """Return the decorator of a `POST` of `path`; ids of its requests begin with `id_prefix`."""
    return InferenceRoute(
        path,
        http_method="POST",
        status_code=200,
        operation_class=described,
        summary=summary,
        opt={"id_prefix": id_prefix, "id_separator": id_separator},
    )


def caller_of(request: HttpRequest) -> Caller:
    caller: Caller = request.scope["state"][CALLER]
    return caller


async def admit(connection: Connection, handler: BaseRouteHandler) -> None:
    """Set `request_id`, `arrival` (monotonic seconds), `headers` and `caller` of the request's state.

    Raises `ApiError` 401 where keys are configured and the caller has none, and 403 for another site's web page.
    """
    state = init_request_state(connection, handler)
    directory = access_of(connection).tenancy.directory
    if directory.asks_for_keys:
        caller = authenticate(directory.inference_caller, state["headers"], "API key")
        if "inference" not in caller.scopes:
            raise out_of_scope(caller, "inference")
        state[CALLER] = caller
    else:
        refuse_unknown_hosts(connection)


async def admit_visitor(connection: Connection, handler: BaseRouteHandler) -> None:
    """As `admit`, for pages that need no sign-in: any caller, but no page of another site."""
    init_request_state(connection, handler)


def may_see_private_metrics(connection: Connection) -> bool:
    """Return whether /metrics shows the series with names and costs: with a key for viewing or administration; where
    no key is asked for, to callers that reach this machine by a loopback name.

    Other keys are no error: one scrape configuration may serve gateways with different keys, and a scrape must not
    depend on the database.
    """
    directory, authorization = access_of(connection).tenancy.directory, authorization_of(connection.headers)
    with suppress(UnknownKeyError, KeysUnavailableError):
        if not ADMINISTRATION.isdisjoint(directory.admin_caller(authorization).scopes):
            return True
    if directory.asks_for_keys:
        return False
    host = hostname_of(connection.headers.get("host", ""))
    return listens_here_alone(access_of(connection).settings.host) and is_loopback_host(host)


def authorization_of(headers: Mapping[str, str]) -> str | None:
    """The `Authorization` header; without one, or a key in it, the key in one of `KEY_HEADERS`, in the same form."""
    authorization = headers.get("authorization")
    has_key = authorization is not None and authorization.strip().lower() not in ("", "bearer")
    if not has_key and (key := next(filter(None, map(headers.get, KEY_HEADERS)), None)) is not None:
        return f"Bearer {key}"
    return authorization


def authenticate(find: Callable[[str | None], Caller], headers: Mapping[str, str], what: str) -> Caller:
    """Return the owner of the key sent, which `find` knows. Raises `ApiError` 401, or 503 while keys are unknown."""
    try:
        return find(authorization_of(headers))
    except UnknownKeyError as error:
        raise ApiError(401, f"{error} Send an {what} as 'Authorization: Bearer KEY'; {_ORIGIN_OF[what]}.") from None
    except KeysUnavailableError:
        raise ApiError(503, "Keys cannot be checked yet. Try again later.", code="keys_unavailable") from None


def out_of_scope(caller: Caller, needed: str) -> ApiError:
    """The 403 of a caller whose scopes lack `needed`."""
    return ApiError(
        403,
        f"{_whose(caller)} scopes are {', '.join(sorted(caller.scopes))}; the request needs {needed}.",
        code="insufficient_scope",
    )


def _whose(caller: Caller) -> str:
    return "Your" if (caller.key_id or "").startswith("user:") else "This key's"


def init_request_state(connection: Connection, handler: BaseRouteHandler) -> Any:
    """What every guard does first: the state of the request, in which it has its name and no caller yet.

    Raises `ApiError` 403 for a change that a page of another site sends.
    """
    # litestar makes a new object of it at every `connection.state`.
    state = connection.scope["state"]
    state["arrival"] = time.monotonic()
    state["request_id"] = new_request_id(handler.opt.get("id_prefix", "req"), handler.opt.get("id_separator", "-"))
    state[CALLER] = KEYLESS
    # The first of a name; litestar makes a structure of all at every `connection.headers`.
    state["headers"] = {
        name.decode("latin-1"): value.decode("latin-1") for name, value in [*connection.scope["headers"]][::-1]
    }
    if connection.scope["path"].startswith(_GOOGLES_PATHS) and (key := connection.query_params.get("key")):
        # Google's API takes a key in the query as well.
        state["headers"].setdefault("x-goog-api-key", key)
    if "content-encoding" in state["headers"]:
        _decode_body(connection, state["headers"]["content-encoding"])
    LOG_CONTEXT.set(LogContext(state["request_id"]))
    _refuse_other_sites(connection, state["headers"])
    return state


def _decode_body(connection: Connection, coding: str) -> None:
    """Let the request's body be read decoded."""
    if isinstance(connection, Request) and coding.strip().lower() not in ("", "identity"):
        from gateway.edge.body_coding import DecodedBody

        connection.receive = DecodedBody(connection.receive, coding, access_of(connection).settings.body_limit)


def _refuse_other_sites(connection: Connection, headers: Mapping[str, str]) -> None:
    """Raises `ApiError` 403 if a page of another origin would change something or open a WebSocket, unless the origin
    is one of AIO_CORS_ORIGINS or the request has a valid key."""
    # A WebSocket has no method.
    if connection.scope.get("method") in READING:
        return
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is None and origin is None:
        return
    # Over plain HTTP browsers leave the first one out, except to this machine.
    if site in ("same-origin", "none") if site is not None else _is_own(origin, headers.get("host")):
        return
    settings = access_of(connection).settings
    if not _origins_of(settings.cors_origins).isdisjoint((origin, "*")) or _has_key(connection):
        return
    raise ApiError(
        403,
        f"A page of another site (origin {origin or 'unknown'!r:.128}) may not do this without a key. The operator "
        "lists the origins whose pages may in AIO_CORS_ORIGINS.",
        code="cross_origin_request",
    )


def refuse_unknown_hosts(connection: Connection) -> None:
    """For callers without a key. Raises `ApiError` 403 if the Host header is no known name of this server's."""
    settings = access_of(connection).settings
    host = connection.headers.get("host", "")
    if host_is_allowed(host, settings.host, settings.allowed_hosts) or _has_key(connection):
        return
    raise ApiError(
        403,
        f"The host name {host!r:.128} is not known to be this server's; without a key it might be a web page's own. "
        "The operator lists the names of this server in AIO_ALLOWED_HOSTS.",
        code="host_not_allowed",
    )


@lru_cache(maxsize=16)
def _origins_of(setting: str) -> frozenset[str]:
    return frozenset(entry.strip() for entry in setting.split(",")) - {""}


def _is_own(origin: str | None, host: str | None) -> bool:
    """Whether an origin is this server's, as the browser calls it; a proxy in front may speak TLS."""
    scheme, _, authority = (origin or "").lower().partition("://")
    port = {"http": ":80", "https": ":443"}.get(scheme)
    return port is not None and authority.removesuffix(port) == (host or "").lower().removesuffix(port) != ""


def _has_key(connection: Connection) -> bool:
    return access_of(connection).tenancy.directory.knows(authorization_of(connection.headers))
