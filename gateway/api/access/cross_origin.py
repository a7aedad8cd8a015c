"""What keeps web pages of other sites from acting here through the browser of somebody who may.

Any page may have its reader's browser send forms and texts to any server that the browser can reach, this machine's
included. What is looked at here are headers that browsers set and pages cannot choose. Programs that are no browser
send neither `Sec-Fetch-Site` nor `Origin`, and no page of another site knows a key, so that neither is hindered.
"""

from functools import lru_cache
from typing import Any, cast

from litestar.connection import ASGIConnection

from gateway.errors import ApiError
from gateway.parts import PARTS, Parts
from gateway.tenancy.host_names import host_is_allowed

Connection = ASGIConnection[Any, Any, Any, Any]

READING = frozenset({"GET", "HEAD", "OPTIONS"})


def refuse_other_sites(connection: Connection) -> None:
    """Raises `ApiError` 403 if a page of another origin would change something or open a WebSocket, unless the origin
    is one of AIO_CORS_ORIGINS or the request has a valid key."""
    # A WebSocket has no method.
    if connection.scope.get("method") in READING:
        return
    site, origin = connection.headers.get("sec-fetch-site"), connection.headers.get("origin")
    if site is None and origin is None:
        return
    # Over plain HTTP browsers leave the first one out, except to this machine.
    if site in ("same-origin", "none") if site is not None else _is_own(origin, connection.headers.get("host")):
        return
    parts = _parts(connection)
    if not _origins_of(parts.settings.cors_origins).isdisjoint((origin, "*")) or _has_key(connection):
        return
    raise ApiError(
        403,
        f"A page of another site (origin {origin or 'unknown'!r:.128}) may not do this without a key. The operator "
        "lists the origins whose pages may in AIO_CORS_ORIGINS.",
        code="cross_origin_request",
    )


def refuse_unknown_hosts(connection: Connection) -> None:
    """For callers without a key. Raises `ApiError` 403 if the Host header is no known name of this server's."""
    settings = _parts(connection).settings
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
    return _parts(connection).tenancy.directory.knows(connection.headers.get("authorization"))


def _parts(connection: Connection) -> Parts:
    return cast(Parts, connection.app.state[PARTS])
