"""The guards on connections without a server: who may call, which pages of other sites may not, and what they note."""

from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from litestar.exceptions import InternalServerException
from litestar.exceptions.http_exceptions import RequestEntityTooLarge
from litestar.handlers import BaseRouteHandler

from gateway.base.errors import ApiError
from gateway.base.inference_request import CALLER, KEYLESS, Caller
from gateway.base.logs import LOG_CONTEXT
from gateway.base.settings import Settings
from gateway.base.stores.database import DatabaseTime
from gateway.edge.asgi import Connection
from gateway.edge.proxies import ForwardedClient, TrustedProxies
from gateway.tenancy.admin_guard import (
    NotSignedInError,
    actor_of,
    admit_admin,
    admit_page,
    demand_administration,
    demand_csrf,
    demand_role,
)
from gateway.tenancy.guard import (
    ACCESS,
    Access,
    PlainRequest,
    admit,
    admit_visitor,
    authenticate,
    authorization_of,
    client_of,
    cookie_name,
    may_see_private_metrics,
    out_of_scope,
    site_of,
)
from gateway.tenancy.keys.directory import Directory, KeysUnavailableError, UnknownKeyError
from gateway.tenancy.keys.key_secrets import keys_of, new_key
from gateway.tenancy.tenancy import Tenancy
from gateway.tenancy.users.sessions import COOKIE, CSRF_HEADER, SessionsUnavailableError, csrf_of
from tiers.catalog.catalog import CatalogInUse
from tiers.catalog.load import load_catalog

APP, BOSS, WALL = (new_key()[0] for _ in range(3))
FRIEND = "https://app.example"
CATALOG = load_catalog("laptop")
Signed = Caller | Exception | None


class Sessions:
    """Knows one cookie."""

    def __init__(self, who: Signed) -> None:
        self.who = who

    async def caller(self, token: str) -> Caller | None:
        if isinstance(self.who, Exception):
            raise self.who
        return self.who if token == "t" else None


def handler(**opt: str) -> BaseRouteHandler:
    return cast(BaseRouteHandler, SimpleNamespace(opt=opt))


def connection(
    *headers: tuple[str, str], method: str | None = "POST", signed: Signed = None, peer: Any = ("10.0.0.1", 5),
    receive: Any = None, **settings: Any,
) -> Connection:  # fmt: skip
    """A request with these headers, to a gateway that the database is away of; `method` None: a WebSocket."""
    given = Settings(
        **{"cors_origins": f"{FRIEND}, ", "allowed_hosts": "ai.example", "admin_keys": f"boss={BOSS}"} | settings
    )
    clock = DatabaseTime(lambda: 7.0, lambda: 7.0)
    directory = Directory(
        cast(Any, None), CatalogInUse(CATALOG), keys_of(given), clock, may_be_open=True, marker=Path("/nonexistent"),
        open_at_first=True,
    )  # fmt: skip
    tenancy = Tenancy(directory, cast(Any, None), cast(Any, None), clock, "replica_1")
    access = Access(given, tenancy, cast(Any, Sessions(signed)), TrustedProxies("10.0.0.0/8"))
    scope: dict[str, Any] = {
        "type": "http", "scheme": "http", "client": peer, "state": {}, "path": "/", "query_string": b"",
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers],
        "litestar_app": SimpleNamespace(state={ACCESS: access}),
    }  # fmt: skip
    if method is not None:
        scope["method"] = method
    return PlainRequest(cast(Any, scope), receive or cast(Any, None))


def bearer(key: str) -> tuple[str, str]:
    return ("authorization", f"Bearer {key}")


async def refusal(*headers: tuple[str, str], guard: Any = admit, **more: Any) -> tuple[int, str | None] | None:
    """Status and code of the guard's refusal; None if it admits."""
    try:
        await guard(connection(*headers, **more), handler())
    except ApiError as error:
        return error.status, error.body.code
    return None


HOST = ("host", "localhost:8080")


@pytest.mark.parametrize(
    ("headers", "may"),
    [
        ((), True),
        ((("origin", "http://evil.example"),), False),
        ((("sec-fetch-site", "cross-site"),), False),
        ((("sec-fetch-site", "same-site"), ("origin", "http://localhost:8080")), False),
        ((("sec-fetch-site", "same-origin"), ("origin", "https://behind.a.proxy")), True),
        ((("sec-fetch-site", "none"),), True),
        ((("origin", "HTTP://LocalHost:8080"),), True),
        ((("origin", FRIEND),), True),
        ((("origin", FRIEND), ("sec-fetch-site", "cross-site")), True),
        ((("origin", ""),), False),
        ((("origin", "http://evil.example"), bearer(BOSS)), True),
        ((("origin", "http://evil.example"), ("x-api-key", BOSS)), True),
        ((("origin", "http://evil.example"), bearer("guessed")), False),
    ],
)
async def test_a_page_of_another_site_may_not_without_a_key_or_the_operators_word(
    headers: tuple[tuple[str, str], ...], may: bool
) -> None:
    refused = None if may else (403, "cross_origin_request")
    for guard in (admit, admit_visitor):
        assert await refusal(HOST, *headers, guard=guard) == refused
    assert await refusal(HOST, *headers, method=None) == refused, "a WebSocket"
    assert await refusal(HOST, *headers, method="GET") is None
    assert await refusal(HOST, *headers, cors_origins="*") is None


@pytest.mark.parametrize(
    ("origin", "host", "own"),
    [
        ("https://ai.example", "ai.example:443", True), ("https://ai.example:443", "ai.example", True),
        ("http://ai.example:80", "AI.example", True), ("http://ai.example:443", "ai.example", False),
        ("ftp://ai.example", "ai.example", False), ("http://", "", False), ("http://localhost", None, False),
    ],
)  # fmt: skip
async def test_an_origin_is_this_servers_by_the_host_that_was_asked(origin: str, host: str | None, own: bool) -> None:
    headers = [("origin", origin), *([] if host is None else [("host", host)])]
    assert (await refusal(*headers, guard=admit_visitor) is None) == own


@pytest.mark.parametrize(
    ("headers", "may"),
    [
        ((HOST,), True), ((("host", "ai.example"),), True), ((("host", "evil.example"),), False), ((), False),
        ((("host", "evil.example"), bearer(BOSS)), True), ((("host", "evil.example"), bearer("x")), False),
    ],
)  # fmt: skip
async def test_without_a_key_the_host_is_a_known_name_of_this_server(
    headers: tuple[tuple[str, str], ...], may: bool
) -> None:
    assert await refusal(*headers, method="GET") == (None if may else (403, "host_not_allowed"))
    assert await refusal(*headers, method="GET", guard=admit_visitor) is None


async def test_where_there_are_keys_a_caller_has_one_for_inference() -> None:
    keys = {"api_keys": f"app={APP}"}
    given = connection(("host", "evil.example"), bearer(APP), **keys)
    await admit(given, handler())
    assert given.scope["state"][CALLER].key_id == "app"
    # Stored keys are not known while the database is away.
    assert await refusal(HOST, bearer("x"), **keys) == (503, "keys_unavailable")
    assert await refusal(HOST, **keys) == (401, "invalid_api_key")


async def test_the_request_has_a_name_an_arrival_and_the_first_header_of_each_name() -> None:
    given = connection(HOST, ("x-a", "é"), ("x-a", "2"))
    await admit_visitor(given, handler(id_prefix="chatcmpl", id_separator="_"))
    state = given.scope["state"]
    assert state["headers"] == {"host": "localhost:8080", "x-a": "é"}
    assert state["request_id"].startswith("chatcmpl_")
    assert state["arrival"] > 0
    assert state[CALLER] is KEYLESS
    context = LOG_CONTEXT.get()
    assert context is not None
    assert context.request_id == state["request_id"]
    await admit_visitor(given, handler())
    assert state["request_id"].startswith("req-")


def test_a_key_may_come_in_anthropics_header() -> None:
    assert authorization_of({"x-api-key": "k"}) == "Bearer k"
    assert authorization_of({"x-api-key": "k", "authorization": "Bearer j"}) == "Bearer j"
    assert authorization_of({}) is None


def test_a_key_that_is_not_known_is_an_error_of_the_caller_or_of_the_database() -> None:
    def raises(error: Exception) -> Any:
        def find(_: str | None) -> Caller:
            raise error

        return find

    assert authenticate(lambda given: Caller(name=str(given)), {"authorization": "a"}, "API key").name == "a"
    for what, origin in (("API key", "the operator hands them out"), ("admin key", "'aio keys create NAME")):
        with pytest.raises(ApiError, match=f"Wrong. Send an {what} as .*{origin}") as refused:
            authenticate(raises(UnknownKeyError("Wrong.")), {}, what)
        assert refused.value.status == 401
    with pytest.raises(ApiError) as refused:
        authenticate(raises(KeysUnavailableError()), {}, "API key")
    assert (refused.value.status, refused.value.body.code) == (503, "keys_unavailable")


def test_a_refusal_by_scope_says_what_the_caller_has() -> None:
    scopes = frozenset({"viewer", "inference"})
    errors = [out_of_scope(Caller(key_id=key_id, scopes=scopes), "admin") for key_id in ("user:ann", "key_1", None)]
    assert [error.status for error in errors] == [403] * 3
    assert [str(error) for error in errors] == [
        f"{whose} scopes are inference, viewer; the request needs admin."
        for whose in ("Your", "This key's", "This key's")
    ]


@pytest.mark.parametrize(
    ("headers", "settings", "may"),
    [
        ((HOST,), {}, True), ((("host", "evil.example"),), {}, False), ((HOST,), {"host": "0.0.0.0"}, False),
        ((HOST,), {"api_keys": f"app={APP}"}, False), ((HOST, bearer(APP)), {"api_keys": f"app={APP}"}, False),
        ((bearer(BOSS),), {"api_keys": f"app={APP}"}, True),
        ((bearer(WALL),), {"viewer_keys": f"wall={WALL}", "host": "0.0.0.0"}, True),
    ],
)  # fmt: skip
def test_private_metrics_are_for_viewers_and_this_machine(headers: Any, settings: dict[str, str], may: bool) -> None:
    assert may_see_private_metrics(connection(*headers, method="GET", **settings)) is may


# -- administration ----------------------------------------------------------------------------------

VIEWER = Caller(key_id="user:ann", name="ann", scopes=frozenset({"viewer"}))
ADMIN = Caller(key_id="user:eve", name="eve", scopes=frozenset({"viewer", "operator", "admin"}))
SIGNED_IN = ("cookie", f"{COOKIE}=t")
TOKEN = (CSRF_HEADER, csrf_of("t"))


@pytest.mark.parametrize(
    ("headers", "more", "refused"),
    [
        ((bearer(BOSS),), {}, None),
        ((bearer(BOSS), SIGNED_IN), {"signed": VIEWER}, None),
        ((bearer("x"),), {}, (503, "keys_unavailable")),
        ((), {}, (401, "invalid_api_key")),
        ((("cookie", f"{COOKIE}=of nobody"),), {"signed": ADMIN}, (401, "invalid_api_key")),
        ((SIGNED_IN, TOKEN), {"signed": ADMIN}, None),
        ((SIGNED_IN,), {"signed": ADMIN}, (403, "csrf_token_invalid")),
        ((SIGNED_IN, (CSRF_HEADER, csrf_of("u"))), {"signed": ADMIN}, (403, "csrf_token_invalid")),
        ((SIGNED_IN, TOKEN), {"signed": VIEWER}, (403, "insufficient_scope")),
        ((SIGNED_IN,), {"signed": VIEWER, "method": "GET"}, None),
        ((bearer(WALL),), {"viewer_keys": f"wall={WALL}"}, (403, "insufficient_scope")),
        ((bearer(WALL),), {"viewer_keys": f"wall={WALL}", "method": "GET"}, None),
        ((SIGNED_IN, TOKEN), {"signed": SessionsUnavailableError()}, (503, "database_unavailable")),
        ((), {"admin_keys": ""}, (503, "keys_unavailable")),
    ],
)
async def test_an_admin_key_or_a_sign_in_with_our_forms_token_administers(
    headers: Any, more: dict[str, Any], refused: Any
) -> None:
    assert await refusal(HOST, *headers, guard=admit_admin, **more) == refused
    given = connection(HOST, *headers, **more)
    with suppress(ApiError):
        await admit_admin(given, handler())
    caller = given.scope["state"][CALLER]
    assert (caller is KEYLESS) == (refused is not None)
    assert caller is KEYLESS or actor_of(cast(Any, given)) in ("boss", "wall", "user:ann", "user:eve")


async def test_a_page_is_for_who_is_signed_in() -> None:
    with pytest.raises(NotSignedInError):
        await admit_page(connection(HOST, bearer(BOSS), method="GET"), handler())
    given = connection(HOST, SIGNED_IN, method="GET", signed=VIEWER)
    await admit_page(given, handler())
    assert actor_of(cast(Any, given)) == "user:ann"
    assert await refusal(HOST, SIGNED_IN, guard=admit_page, signed=VIEWER) == (403, "insufficient_scope")
    assert await refusal(HOST, SIGNED_IN, guard=admit_page, signed=ADMIN) == (403, "csrf_token_invalid")
    assert await refusal(HOST, SIGNED_IN, TOKEN, guard=admit_page, signed=ADMIN) is None


@pytest.mark.parametrize(
    ("method", "opt", "needed"),
    [("GET", {}, "viewer"), ("POST", {}, "admin"), ("POST", {"role": "operator"}, "operator"), (None, {}, "admin")],
)
def test_reading_takes_a_viewer_and_a_change_an_admin_unless_the_handler_says(
    method: str | None, opt: dict[str, str], needed: str
) -> None:
    roles = {"viewer": {"viewer"}, "operator": {"viewer", "operator"}, "admin": {"viewer", "operator", "admin"}}
    for role, scopes in roles.items():
        caller = Caller(key_id="k", scopes=frozenset(scopes))
        if needed in scopes:
            demand_role(connection(method=method), handler(**opt), caller)
        else:
            with pytest.raises(ApiError, match=f"the request needs {needed}"):
                demand_role(connection(method=method), handler(**opt), caller)
        assert role in scopes
    demand_role(connection(method=method), handler(**opt), Caller(key_id="k", scopes=frozenset({"admin"})))


@pytest.mark.parametrize(
    ("kind", "body", "right"),
    [
        ("application/x-www-form-urlencoded", f"csrf_token={csrf_of('t')}", True),
        ("application/x-www-form-urlencoded; charset=utf-8", f"csrf_token={csrf_of('t')}", True),
        ("application/x-www-form-urlencoded", f"csrf_token={csrf_of('u')}", False),
        ("application/x-www-form-urlencoded", "", False),
        ("text/plain", f"csrf_token={csrf_of('t')}", False),
    ],
)
async def test_a_form_has_the_token_in_a_field(kind: str, body: str, right: bool) -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body.encode(), "more_body": False}

    given, other = (
        connection(SIGNED_IN, ("content-type", kind), *header, receive=receive) for header in ((), (TOKEN,))
    )
    await demand_csrf(other)
    given.scope["route_handler"] = cast(Any, SimpleNamespace(resolve_request_max_body_size=lambda: None))
    given.scope["state"]["headers"] = {}
    if right:
        await demand_csrf(given)
    else:
        with pytest.raises(ApiError, match="did not come from a form of this dashboard"):
            await demand_csrf(given)


def test_without_any_admin_key_administration_is_off_until_the_database_was_read_or_a_key_is_made() -> None:
    def directory(has_admin: bool, is_read: bool) -> Any:
        return SimpleNamespace(has_admin=has_admin, is_read=is_read)

    demand_administration(directory(True, False))
    for is_read, expected in ((False, (503, "keys_unavailable")), (True, (403, "admin_disabled"))):
        with pytest.raises(ApiError) as refused:
            demand_administration(directory(False, is_read))
        assert (refused.value.status, refused.value.body.code) == expected


# -- addresses and bodies ----------------------------------------------------------------------------

TLS = (("x-forwarded-proto", "https"), ("x-forwarded-for", "9.9.9.9"))


def test_a_proxy_that_is_trusted_tells_the_clients_address_and_whether_it_speaks_tls() -> None:
    assert client_of(connection(*TLS)) == ForwardedClient("9.9.9.9", True)
    assert client_of(connection(*TLS, peer=("11.0.0.1", 5))) == ForwardedClient("11.0.0.1", False)
    assert client_of(connection(*TLS, peer=None)) == ForwardedClient("", False)
    assert site_of(connection(*TLS, ("host", "ai.example"))) == "https://ai.example"
    for headers in ((), (("host", "a b"),)):
        assert site_of(connection(*headers, host="h", port=80)) == "http://h:80"
    assert [cookie_name(connection(*headers), "c") for headers in (TLS, ())] == ["__Host-c", "c"]


async def body_of(*parts: bytes, most: int | None = 10, announced: str | None = None) -> tuple[bytes, bytes, bool]:
    """The body as it is read first and again, and whether the client is taken to be still sending."""
    messages: list[dict[str, Any]] = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    if messages and parts[-1] == b"gone":
        messages[-1] = {"type": "http.disconnect"}
    elif messages:
        # ASGI: no more unless it says so.
        del messages[-1]["more_body"]

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    request = cast(PlainRequest, connection(receive=receive))
    request.scope["route_handler"] = cast(Any, SimpleNamespace(resolve_request_max_body_size=lambda: most))
    request.scope["state"]["headers"] = {} if announced is None else {"content-length": announced}
    return await request.body(), await request.body(), request.is_connected


@pytest.mark.parametrize(
    ("parts", "more"),
    [
        ((b"1234567890",), {}), ((b"12345", b"", b"67890"), {}), ((b"1234567890",), {"announced": "10"}),
        ((b"12345678901",), {"most": None, "announced": "11"}), ((b"123456", b"78901"), {"most": None}),
    ],
)  # fmt: skip
async def test_a_body_up_to_the_limit_is_read_once(parts: tuple[bytes, ...], more: dict[str, Any]) -> None:
    whole = b"".join(parts)
    assert await body_of(*parts, **more) == (whole, whole, False)


async def test_a_body_beyond_the_limit_is_refused_as_soon_as_that_is_known() -> None:
    with pytest.raises(RequestEntityTooLarge):
        await body_of(announced="11")
    with pytest.raises(RequestEntityTooLarge):
        await body_of(b"123456", b"78901", b"never read")
    with pytest.raises(InternalServerException, match="client disconnected prematurely"):
        await body_of(b"12345", b"gone")
