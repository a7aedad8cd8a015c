"""Cookies of the sign-in: out of reach of scripts, and sent over TLS only where the browser speaks it."""

from typing import Any, Literal

from litestar.datastructures import Cookie
from litestar.response import Response

from gateway.edge.asgi import HttpRequest
from gateway.tenancy.access.guard import client_of


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
