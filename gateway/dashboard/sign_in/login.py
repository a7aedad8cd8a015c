"""Signing in and out: by an admin key, or by a user's name and password."""

import logging
from typing import Any

from litestar import get, post
from litestar.datastructures import Cookie
from litestar.response import Response

from gateway.api.access.guard import actor_of
from gateway.dashboard.rendering import HOME, LOGIN, back_to, page
from gateway.dashboard.sign_in.login_limit import LoginLimit
from gateway.dashboard.sign_in.sign_in_trail import Means, address_of, note, note_failure
from gateway.errors import ApiError
from gateway.parts import HttpRequest, parts_of
from gateway.stores.database_reach import reached
from gateway.tenancy.dashboard_users.sessions import (
    COOKIE,
    CSRF_FIELD,
    SESSION_SECONDS,
    Holder,
    SessionsUnavailableError,
    csrf_is_right,
    new_token,
)
from gateway.tenancy.dashboard_users.users import password_is_right
from gateway.tenancy.directory import KeysUnavailableError, UnknownKeyError
from gateway.tenancy.key_secrets import digest_of
from gateway.tenancy.known_keys import ADMINISTRATION

log = logging.getLogger(__name__)

LIMIT = "login_limit"
FORM_BYTES = 16 * 1024


@get("/login")
async def show_login(request: HttpRequest) -> Response[Any]:
    """Show the form. Its CSRF token belongs to an anonymous cookie, so that no other site can sign a browser in."""
    token = request.cookies.get(COOKIE)
    if token is None:
        # The page's token must match the cookie sent with it.
        request.cookies[COOKIE] = token = new_token()
        return _with_cookie(request, login_form(request), token, None)
    return login_form(request)


@post("/login", status_code=200, request_max_body_size=FORM_BYTES)
async def sign_in(request: HttpRequest) -> Response[Any]:
    """Start a session under a fresh token."""
    form = {name: value for name, value in (await request.form()).items() if isinstance(value, str)}
    if not csrf_is_right(request.cookies.get(COOKIE, ""), form.get(CSRF_FIELD)):
        return login_form(request, 403, "The form was too old, or its cookie was refused. Try again.")
    limit = _limit(request)
    name, secret = form.get("name", "").strip(), form.get("secret", "")
    means: Means = "password" if name else "key"
    subjects = [f"from {address_of(request)}", *([f"name {name[:128]}"] if name else [])]
    if seconds := limit.wait(*subjects):
        # Once each time the limit starts to hold, so that repeated attempts cannot fill the database.
        if limit.is_news(*subjects):
            await note_failure(request, "session.limited", name, means)
        refused = login_form(request, 429, f"Too many attempts failed. Wait {seconds} seconds.")
        refused.headers["retry-after"] = str(seconds)
        return refused
    # Before the first await: concurrent attempts count too.
    limit.failed(*subjects)
    holder = await _holder(request, name, secret)
    if holder is None:
        log.warning("a sign-in to the dashboard failed, by %s", means)
        await note_failure(request, "session.refused", name, means)
        return login_form(request, 401, "That is no name with its password, and no admin key.", name)
    limit.forgive(*subjects)
    return await begin_session(request, holder, means, back_to(safe_path(form.get("next", ""))))


async def begin_session(request: HttpRequest, holder: Holder, means: Means, response: Response[Any]) -> Response[Any]:
    """Start a session under a fresh token, whose cookie `response` brings. Raises `ApiError` 503."""
    sessions = parts_of(request).sessions
    try:
        token = await sessions.begin(holder)
        caller = await sessions.caller(token)
    except SessionsUnavailableError:
        raise ApiError(503, "The database is down. Sign in with an admin key, or try again later.") from None
    if caller is not None and caller.key_id is not None:
        await note(request, "session.begun", caller.key_id, by=means)
    return _with_cookie(request, response, token, int(SESSION_SECONDS))


@post("/logout", opt={"role": "viewer"}, status_code=200)
async def sign_out(request: HttpRequest) -> Response[Any]:
    """End the session, here and in the database."""
    await reached(parts_of(request).sessions.end(request.cookies.get(COOKIE, "")))
    await note(request, "session.ended", actor_of(request))
    response = back_to(LOGIN)
    response.delete_cookie(COOKIE, path="/")
    return response


async def _holder(request: HttpRequest, name: str, secret: str) -> Holder | None:
    """Return who it is, or None."""
    if name:
        right = await reached(password_is_right(parts_of(request).database, name, secret))
        return Holder(user_name=name) if right else None
    digest = digest_of(secret.strip())
    try:
        caller = parts_of(request).tenancy.directory.admin_with(digest)
    except UnknownKeyError:
        return None
    except KeysUnavailableError:
        raise ApiError(503, "Keys cannot be checked yet. Try again later.", code="keys_unavailable") from None
    if caller.scopes.isdisjoint(ADMINISTRATION):
        return None
    return Holder(key_id=caller.key_id, key_digest=digest)


def login_form(request: HttpRequest, status: int = 200, problem: str = "", name: str = "") -> Response[bytes]:
    """Return the page with the form, and a link to the OpenID provider if there is one."""
    directory = parts_of(request).tenancy.directory
    wanted = safe_path(request.query_params.get("next", ""))
    return page(
        request,
        "login.html",
        "Sign in",
        status=status,
        problem=problem,
        name=name,
        next=wanted,
        has_admin=directory.has_admin,
        has_provider=parts_of(request).identity_provider is not None,
    )


def safe_path(path: str) -> str:
    """Return `path` if it leads to this site."""
    inside = path == HOME or path.startswith((f"{HOME}/", f"{HOME}?"))
    return path if inside and "\\" not in path and not path.startswith(LOGIN) and path.isprintable() else HOME


def speaks_https(request: HttpRequest) -> bool:
    """Return whether the browser speaks TLS, with this server or with a proxy in front of it."""
    return "https" in (request.url.scheme, request.headers.get("x-forwarded-proto"))


def _with_cookie(request: HttpRequest, response: Response[Any], token: str, max_age: int | None) -> Response[Any]:
    # The path is `/`, since the cookie also opens the JSON endpoints under /v1/admin.
    secure = speaks_https(request)
    cookie = Cookie(COOKIE, value=token, path="/", max_age=max_age, httponly=True, samesite="strict", secure=secure)
    response.set_cookie(cookie)
    return response


def _limit(request: HttpRequest) -> LoginLimit:
    limit: LoginLimit = request.app.state.setdefault(LIMIT, LoginLimit())
    return limit
