"""The guards of administration and of the dashboard: admin keys, sign-ins, roles, and forms of our own pages."""

from typing import cast

from litestar.handlers import BaseRouteHandler

from gateway.base.errors import ApiError
from gateway.base.inference_request import CALLER, Caller
from gateway.edge.asgi import Connection, HttpRequest
from gateway.tenancy.guard import (
    READING,
    access_of,
    authenticate,
    caller_of,
    cookie_name,
    init_request_state,
    out_of_scope,
)
from gateway.tenancy.keys.directory import Directory
from gateway.tenancy.users.sessions import COOKIE, CSRF_FIELD, CSRF_HEADER, SessionsUnavailableError, csrf_is_right

# The `opt` of handlers whose change takes no admin, and of those that only an admin may look at.
OPERATOR: dict[str, str] = {"role": "operator"}
ADMIN: dict[str, str] = {"role": "admin"}


class NotSignedInError(Exception):
    """A page of the dashboard was requested without a sign-in."""


def actor_of(request: HttpRequest) -> str:
    """The administrator's id for the audit trail."""
    actor = caller_of(request).key_id
    assert actor is not None, "no guard of administration admits a caller without a key"
    return actor


async def admit_admin(connection: Connection, handler: BaseRouteHandler) -> None:
    """As `admit`, for `/v1/admin` and `/admin/api`: the owner of an admin key, or who is signed in to the dashboard.

    Raises `ApiError` 401, 403, or 503 while it cannot be known who may.
    """
    state = init_request_state(connection, handler)
    signed_in = None if "authorization" in state["headers"] else await session_caller(connection)
    if signed_in is not None:
        demand_role(connection, handler, signed_in)
        await demand_csrf(connection)
        state[CALLER] = signed_in
        return
    directory = access_of(connection).tenancy.directory
    demand_administration(directory)
    caller = authenticate(directory.admin_caller, state["headers"], "admin key")
    demand_role(connection, handler, caller)
    state[CALLER] = caller


async def admit_page(connection: Connection, handler: BaseRouteHandler) -> None:
    """As `admit`, for pages of the dashboard: who is signed in, may do it, and sent a form of ours if it is a change.

    Raises `NotSignedInError`, or `ApiError` 403 and 503.
    """
    state = init_request_state(connection, handler)
    caller = await session_caller(connection)
    if caller is None:
        raise NotSignedInError
    state[CALLER] = caller
    demand_role(connection, handler, caller)
    await demand_csrf(connection)


async def session_caller(connection: Connection) -> Caller | None:
    """The caller that is signed in to the dashboard in this browser, or None. Raises `ApiError` 503."""
    token = session_token(connection)
    if not token:
        return None
    try:
        return await access_of(connection).sessions.caller(token)
    except SessionsUnavailableError:
        raise ApiError(
            503, "The database is down, so AIO knows no sessions now. Try again later.", code="database_unavailable"
        ) from None


def demand_administration(directory: Directory) -> None:
    """Raises `ApiError` while no key can administer: 503 before the database was read, 403 if none is valid."""
    if directory.has_admin:
        return
    if not directory.is_read:
        raise ApiError(
            503,
            "Administration is off until the database is back: its admin keys are not known yet. Keys of "
            "AIO_ADMIN_KEYS need no database.",
            code="keys_unavailable",
        )
    raise ApiError(
        403,
        "Administration is off: no admin key is valid any more. Set AIO_ADMIN_KEYS, or make a key with "
        "'aio keys create NAME --scope admin'.",
        code="admin_disabled",
    )


def demand_role(connection: Connection, handler: BaseRouteHandler, caller: Caller) -> None:
    """Reading takes a viewer, a change an admin, or the `role` of the handler's `opt`. Raises `ApiError` 403."""
    usual = "viewer" if connection.scope.get("method") in READING else "admin"
    needed = handler.opt.get("role", usual)
    if caller.scopes.isdisjoint(("admin", needed)):
        raise out_of_scope(caller, needed)


async def demand_csrf(connection: Connection) -> None:
    """What a cookie alone would let through must come with the token of our own forms, as a field or a header: browsers
    send cookies for other sites too. Raises `ApiError` 403."""
    if connection.scope.get("method") in READING:
        return
    token = connection.headers.get(CSRF_HEADER)
    if token is None and connection.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        field = (await cast(HttpRequest, connection).form()).get(CSRF_FIELD)
        token = field if isinstance(field, str) else None
    if not csrf_is_right(session_token(connection), token):
        raise ApiError(
            403,
            f"The change did not come from a form of this dashboard, or its page is too old: {CSRF_FIELD} is missing "
            "or wrong. Open the page again.",
            code="csrf_token_invalid",
        )


def session_token(connection: Connection) -> str:
    """Return the value of the session's cookie; empty without one."""
    return connection.cookies.get(cookie_name(connection, COOKIE), "")
