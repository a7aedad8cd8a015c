"""Signing in and out: by an admin key, or by a user's name and password.

Failures of an account are limited, so that its password cannot be guessed; without exceptions anyone could lock its
owner out. A device on which the account signed in before has a cookie and a limit of its own instead (OWASP, "Slow
Down Online Guessing Attacks with Device Cookies"). The stored hash of the password signs the cookie: it is secret, the
same for all processes of a deployment, and another password makes its devices unknown.
"""

import hashlib
import hmac
import re
import secrets
from typing import Any, Literal

from litestar import get, post
from litestar.datastructures import Cookie
from litestar.response import Response

from gateway.base.errors import ApiError
from gateway.base.stores.database import reached
from gateway.edge.asgi import HttpRequest
from gateway.edge.proxies import network_of
from gateway.inference.service import serving_of
from gateway.operations.dashboard.html.rendering import HOME, LOGIN, back_to, page
from gateway.operations.dashboard.sign_in.login_limit import Attempt, Means, limits_of, note, note_failure
from gateway.operations.running import operations_of
from gateway.tenancy.admin_guard import actor_of, session_token
from gateway.tenancy.guard import access_of, client_of, cookie_name
from gateway.tenancy.keys.directory import ADMINISTRATION, KeysUnavailableError, UnknownKeyError
from gateway.tenancy.keys.key_secrets import digest_of
from gateway.tenancy.users.sessions import (
    COOKIE,
    CSRF_FIELD,
    SESSION_SECONDS,
    Holder,
    SessionsUnavailableError,
    csrf_is_right,
    csrf_of,
    new_token,
)
from gateway.tenancy.users.users import PROVIDER_PREFIX, TooManyPasswordsError, kept_password, password_is_right

DEVICE_SECONDS = 90 * 86_400
_COOKIE = re.compile(r"([0-9a-f]{32})\.([0-9]{1,12})\.([0-9a-f]{64})\Z")


def device_cookie_name(account: str) -> str:
    """Return the name of the cookie, one for each account of a browser."""
    return f"aio_device_{hashlib.sha256(account.encode()).hexdigest()[:16]}"


def new_device_cookie(account: str, kept: str, now: float) -> str:
    """Return the value of a cookie for a new device of the account. `kept`: the stored hash; `now`: epoch seconds."""
    device, expires = secrets.token_hex(16), str(int(now) + DEVICE_SECONDS)
    return f"{device}.{expires}.{_signature(account, kept, device, expires)}"


def known_device(cookie: str, account: str, kept: str | None, now: float) -> str | None:
    """Return the id of the device if the cookie is right for this account and not expired."""
    match = _COOKIE.match(cookie)
    # What stands for the password of a provider's user is no secret.
    if match is None or kept is None or kept.startswith(PROVIDER_PREFIX) or int(match[2]) <= now:
        return None
    return match[1] if hmac.compare_digest(_signature(account, kept, match[1], match[2]), match[3]) else None


def _signature(account: str, kept: str, device: str, expires: str) -> str:
    message = "\0".join(("aio known device", account, device, expires))
    return hmac.new(kept.encode(), message.encode(), hashlib.sha256).hexdigest()


PATH = "/admin/login"
FORM_BYTES = 16 * 1024


@get("/login")
async def show_login(request: HttpRequest) -> Response[Any]:
    """Show the form."""
    return login_form(request)


@post("/login", status_code=200, request_max_body_size=FORM_BYTES)
async def sign_in(request: HttpRequest) -> Response[Any]:
    """Start a session under a fresh token."""
    form = {name: value for name, value in (await request.form()).items() if isinstance(value, str)}
    if not csrf_is_right(session_token(request), form.get(CSRF_FIELD)):
        return login_form(request, 403, "The form was too old, or its cookie was refused. Try again.")
    name, secret = form.get("name", "").strip(), form.get("secret", "")
    response = back_to(safe_path(form.get("next", "")))
    return await (_by_password(request, name, secret, response) if name else _by_key(request, secret, response))


async def _by_key(request: HttpRequest, secret: str, response: Response[Any]) -> Response[Any]:
    """The right key is always admitted: it cannot be guessed, so that a limit would only keep its holder out."""
    holder = _holder(request, secret)
    if holder is not None:
        return await begin_session(request, holder, "key", response)
    attempt = await limits_of(request).begin(("key", network_of(client_of(request).address)))
    if attempt.wait_seconds:
        return await limited(request, attempt, "", "key")
    return await _wrong(request, "", "key")


async def _by_password(request: HttpRequest, name: str, secret: str, response: Response[Any]) -> Response[Any]:
    """Failures of known devices count for themselves alone, and those of all others by account and by network."""
    database, limits = serving_of(request).database, limits_of(request)
    device = await _device(request, name)
    if device is not None:
        attempt = await limits.begin(("device", device))
    else:
        network = network_of(client_of(request).address)
        attempt = await limits.begin(("account", name[:128]), ("network", network))
    if attempt.wait_seconds:
        return await limited(request, attempt, name, "password")
    try:
        right = await reached(password_is_right(database, name, secret, is_urgent=device is not None))
        kept = await reached(kept_password(database, name)) if right else None
    except TooManyPasswordsError:
        limits.take_back(attempt)
        return _retry_later(login_form(request, 503, "Too many sign-ins at once. Try again in some seconds."), 5)
    except ApiError:
        limits.take_back(attempt)
        raise
    if kept is None:
        return await _wrong(request, name, "password")
    limits.take_back(attempt)
    signed_in = await begin_session(request, Holder(user_name=name), "password", response)
    cookie = new_device_cookie(name, kept, access_of(request).tenancy.clock.now())
    return set_cookie(request, signed_in, device_cookie_name(name), cookie, max_age=DEVICE_SECONDS, path=PATH)


async def _device(request: HttpRequest, name: str) -> str | None:
    """Return the id of this device if it is known to this account."""
    cookie = request.cookies.get(device_cookie_name(name))
    if cookie is None:
        return None
    operations = operations_of(request)
    kept = await reached(kept_password(operations.serving.database, name))
    return known_device(cookie, name, kept, operations.access.tenancy.clock.now())


async def limited(request: HttpRequest, attempt: Attempt, name: str, means: Means) -> Response[Any]:
    """Return the form with a 429 that says how long to wait."""
    # Once each time a limit is reached, so that repeated attempts cannot fill the database.
    if attempt.is_news:
        await note_failure(request, "session.limited", name, means)
    seconds = attempt.wait_seconds
    return _retry_later(login_form(request, 429, f"Too many attempts. Wait {seconds} seconds."), seconds)


async def _wrong(request: HttpRequest, name: str, means: Means) -> Response[Any]:
    await note_failure(request, "session.refused", name, means)
    return login_form(request, 401, "That is no name with its password, and no admin key.", name)


def _retry_later(response: Response[Any], seconds: int) -> Response[Any]:
    response.headers["retry-after"] = str(seconds)
    return response


async def begin_session(request: HttpRequest, holder: Holder, means: Means, response: Response[Any]) -> Response[Any]:
    """Start a session under a fresh token, whose cookie `response` brings. Raises `ApiError` 503."""
    sessions = access_of(request).sessions
    try:
        token = await sessions.begin(holder)
        caller = await sessions.caller(token)
    except SessionsUnavailableError:
        raise ApiError(503, "The database is down. Sign in with an admin key, or try again later.") from None
    if caller is not None and caller.key_id is not None:
        await note(request, "session.begun", caller.key_id, by=means)
    return set_cookie(request, response, cookie_name(request, COOKIE), token, max_age=int(SESSION_SECONDS))


@post("/logout", opt={"role": "viewer"}, status_code=200)
async def sign_out(request: HttpRequest) -> Response[Any]:
    """End the session, here and in the database."""
    await reached(access_of(request).sessions.end(session_token(request)))
    await note(request, "session.ended", actor_of(request))
    return set_cookie(request, back_to(LOGIN), cookie_name(request, COOKIE), "", max_age=0)


def _holder(request: HttpRequest, secret: str) -> Holder | None:
    """Return the holder of an admin key, or None."""
    digest = digest_of(secret.strip())
    try:
        caller = access_of(request).tenancy.directory.admin_with(digest)
    except UnknownKeyError:
        return None
    except KeysUnavailableError:
        raise ApiError(503, "Keys cannot be checked yet. Try again later.", code="keys_unavailable") from None
    if caller.scopes.isdisjoint(ADMINISTRATION):
        return None
    return Holder(key_id=caller.key_id, key_digest=digest)


def login_form(request: HttpRequest, status: int = 200, problem: str = "", name: str = "") -> Response[Any]:
    """Return the page with the form, and a link to the OpenID provider if there is one. The form's CSRF token belongs
    to an anonymous cookie, so that no other site can sign a browser in."""
    session = session_token(request)
    token = session or new_token()
    directory = access_of(request).tenancy.directory
    wanted = safe_path(request.query_params.get("next", ""))
    response = page(
        request,
        "login.html",
        "Sign in",
        status=status,
        # Not of `request.cookies`, which requests with equal headers share.
        csrf=csrf_of(token),
        problem=problem,
        name=name,
        next=wanted,
        has_admin=directory.has_admin,
        has_provider=operations_of(request).identity_provider is not None,
    )
    return response if session else set_cookie(request, response, cookie_name(request, COOKIE), token)


def safe_path(path: str) -> str:
    """Return `path` if it leads to this site."""
    inside = path == HOME or path.startswith((f"{HOME}/", f"{HOME}?"))
    return path if inside and "\\" not in path and not path.startswith(LOGIN) and path.isprintable() else HOME


def set_cookie(
    request: HttpRequest,
    response: Response[Any],
    name: str,
    value: str,
    *,
    max_age: int | None = None,
    path: str = "/",
    samesite: Literal["strict", "lax"] = "strict",
) -> Response[Any]:
    """Return `response` with the cookie. `max_age` in seconds: None until the browser closes, 0 deletes it.

    The session's has the path `/`, since it also opens the JSON endpoints under /v1/admin.
    """
    secure = client_of(request).https
    cookie = Cookie(name, value=value, path=path, max_age=max_age, httponly=True, samesite=samesite, secure=secure)
    response.set_cookie(cookie)
    return response
