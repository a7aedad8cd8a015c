"""The guards of the `/v1` endpoints: they name the request, note its arrival, and find out who asks."""

import ipaddress
import time
from typing import Any
from urllib.parse import urlsplit

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from gateway.errors import ApiError
from gateway.parts import PARTS, HttpRequest
from gateway.request_ids import new_request_id

# Who acts where no keys are configured: whoever sits at this machine.
KEYLESS_ACTOR = "local"


def actor_of(request: HttpRequest) -> str:
    """Who asks, for what is written down about it."""
    actor: str = request.state["key_id"] or KEYLESS_ACTOR
    return actor


def admit(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Set `request_id`, `arrival` (monotonic seconds) and `key_id` of the request's state.

    Raises `ApiError` 401 where keys are configured and the caller has none of them.
    """
    state = _named(connection, handler)
    keys = connection.app.state[PARTS].keys
    if not keys:
        return
    owner = keys.owner(connection.headers.get("authorization"))
    if owner is None:
        raise ApiError(
            401,
            "Missing or wrong API key. Send one as 'Authorization: Bearer KEY'; the operator hands them out.",
        )
    state["key_id"] = owner


def admit_admin(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """As `admit`, for `/v1/admin`: the owner of an admin key; without any keys at all, callers of this machine.

    A keyless caller must have connected from a loopback address, to a loopback name (a page in a browser could
    otherwise reach us by a name of its own that resolves to this machine) and not through a proxy, whose callers would
    all look local. Raises `ApiError` 401 or 403.
    """
    state = _named(connection, handler)
    parts = connection.app.state[PARTS]
    if parts.admin_keys:
        owner = parts.admin_keys.owner(connection.headers.get("authorization"))
        if owner is None:
            raise ApiError(
                401, "Missing or wrong admin key. Send one of AIO_ADMIN_KEYS as 'Authorization: Bearer KEY'."
            )
        state["key_id"] = owner
    elif parts.keys:
        raise ApiError(
            403,
            "Administration is off: this server asks its callers for keys and has no admin key. Set AIO_ADMIN_KEYS.",
            code="admin_disabled",
        )
    elif not _is_local(connection):
        raise ApiError(
            403,
            "Without AIO_ADMIN_KEYS, administration is only for callers on the server's own machine.",
            code="admin_local_only",
        )


def _named(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> Any:
    state = connection.state
    state["arrival"] = time.monotonic()
    state["request_id"] = new_request_id(handler.opt.get("id_prefix", "req"))
    state["key_id"] = None
    return state


def _is_local(connection: ASGIConnection[Any, Any, Any, Any]) -> bool:
    if any(name in connection.headers for name in ("forwarded", "x-forwarded-for", "x-real-ip")):
        return False
    host = urlsplit(f"//{connection.headers.get('host', '')}").hostname or ""
    client = connection.client.host if connection.client is not None else ""
    return _is_loopback(client) and (host == "localhost" or _is_loopback(host))


def _is_loopback(address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_loopback
