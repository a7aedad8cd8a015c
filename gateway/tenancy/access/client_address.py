"""Who is at the other end of a connection, and by which address it reached this server."""

from gateway.edge.asgi import Connection
from gateway.edge.proxies import ForwardedClient, is_authority
from gateway.tenancy.access.access import access_of


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
    """Return scheme and authority of this server as the client wrote them; those of the settings without a valid Host
    header."""
    settings = access_of(connection).settings
    host = connection.headers.get("host", "").encode("latin-1", "replace")
    authority = host.decode() if host and is_authority(host) else f"{settings.host}:{settings.port}"
    return f"{'https' if client_of(connection).https else 'http'}://{authority}"


def cookie_name(connection: Connection, name: str) -> str:
    """Return a cookie's name in this browser. Over TLS it has the prefix `__Host-`, which keeps other hosts of the same
    domain, and plain HTTP, from setting it."""
    return f"__Host-{name}" if client_of(connection).https else name
