"""Transports of HTTP requests: to one server, and through a proxy of the environment.

To one server: persistent HTTP/1.1 connections on the event loop's own protocols, parsed by httptools. That does the
same as httpx's default transport at a tenth of the cost (docs/results/performance.md), because there is no task pool,
no lock and no cancel scope between the socket and the reader.

One function chooses the proxy for every client of the product. `HTTP_PROXY`, `HTTPS_PROXY` and `ALL_PROXY` name one,
and where the system has settings of its own (macOS, Windows) these. `NO_PROXY` exempts. This machine and a cloud's
metadata server are never asked through a proxy: a key for them would leave, and the proxy's own machine is another one.
"""

import asyncio
import ipaddress
import re
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from importlib.util import find_spec
from typing import Any
from urllib.request import getproxies, proxy_bypass

import httpx

from tiers.catalog.tier_spec import NO_TLS, TlsSpec
from tiers.remote.certificates import Trust, judged, trust_of
from tiers.remote.http_connection import HttpConnection
from tiers.server_words import addresses_of, is_loopback_url_host, is_metadata_address, is_metadata_host, plain_host

MAX_CONNECTIONS, MAX_IDLE = 1000, 100
# uvicorn, which serves vLLM and SGLang, closes connections after 5 idle seconds.
IDLE_SECONDS = 4.0
_SCHEMES = ("http", "https", "socks5", "socks5h")
_UNREACHED = (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError)


class HttpTransport(httpx.AsyncBaseTransport):
    """All connections to the origin of `url`, which receives every request. Belongs to one event loop.

    Of the `extensions["timeout"]` of a request of httpx it applies `connect` and, to the whole exchange, `read`, both
    in seconds. If the server closes a reused connection without answering, the request is sent once more on a new one:
    the server had closed the connection before.
    """

    def __init__(self, url: httpx.URL, tls: TlsSpec = NO_TLS) -> None:
        """Raises `CatalogError` for files of certificates that cannot be used."""
        self._host, is_tls = url.host, url.scheme == "https"
        self._port = url.port or (443 if is_tls else 80)
        self._trust = trust_of(tls) if is_tls else None
        self._idle: deque[HttpConnection] = deque()
        self._open: set[HttpConnection] = set()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """See `httpx.AsyncBaseTransport`. Raises `httpx.TransportError`."""
        timeout = request.extensions["timeout"]
        deadline = asyncio.get_running_loop().time() + timeout["read"]
        reply = await self.send(request_bytes(request), timeout["connect"], timeout["read"], deadline)
        return reply.as_response()

    async def send(self, request: bytes, connect_seconds: float, read_seconds: float, deadline: float) -> "Reply":
        """Send a whole `request`, head and body, and return the head of the answer, whose body has to be read by
        `deadline`, in the loop's time. Each wait is at most `read_seconds`. Raises `httpx.TransportError`."""
        connection = self._kept()
        if connection is not None:
            try:
                return await self._exchange(connection, request, read_seconds, deadline)
            except httpx.RemoteProtocolError:
                if not connection.is_untouched:
                    raise
        left = deadline - asyncio.get_running_loop().time()
        connection = await self._connected(max(0.0, min(connect_seconds, left)))
        return await self._exchange(connection, request, read_seconds, deadline)

    async def aclose(self) -> None:
        """Close every connection, including those in use."""
        self._idle.clear()
        for connection in list(self._open):
            connection.close()

    async def _exchange(self, connection: HttpConnection, raw: bytes, seconds: float, deadline: float) -> "Reply":
        try:
            connection.send(raw, seconds, deadline)
            await connection.read_head()
        except BaseException:
            connection.finish()
            connection.close()
            raise
        return Reply(connection, self._idle)

    def _kept(self) -> HttpConnection | None:
        """Return the most recently used connection; close those that were idle for too long."""
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            if connection.is_idle and now - connection.idle_since < IDLE_SECONDS:
                return connection
            connection.close()
        return None

    async def _connected(self, seconds: float) -> HttpConnection:
        if len(self._open) >= MAX_CONNECTIONS:
            raise httpx.PoolTimeout(f"{MAX_CONNECTIONS} connections to {self._host} are in use")
        loop = asyncio.get_running_loop()
        connection = HttpConnection(self._open.discard)
        self._open.add(connection)
        try:
            async with asyncio.timeout(seconds):
                context = None if self._trust is None else self._trust.context
                transport, _ = await loop.create_connection(lambda: connection, self._host, self._port, ssl=context)
            peer = transport.get_extra_info("peername")
            # Check the connected address, not an earlier resolution of the name.
            if peer and is_metadata_address(str(peer[0])):
                connection.close()
                raise ConnectionRefusedError(f"{self._host} is {peer[0]}, where clouds have their metadata")
        except BaseException as error:
            self._open.discard(connection)
            if isinstance(error, TimeoutError):
                raise httpx.ConnectTimeout(f"no connection within {seconds:g} s") from error
            if isinstance(error, OSError):
                raise httpx.ConnectError(judged(error, self._trust)) from error
            raise
        return connection


class Reply(httpx.AsyncByteStream):
    """An answer: status, headers, body as it arrives. Closing it returns the connection, or closes an unread one."""

    def __init__(self, connection: HttpConnection, idle: deque[HttpConnection]) -> None:
        self.status_code = connection.status
        self.headers = headers_by_name(connection.headers)
        self._connection: HttpConnection | None = connection
        self._idle = idle

    @property
    def is_whole(self) -> bool:
        """Whether nothing of the body is left to read."""
        return self._connection is None or self._connection.is_read

    def as_response(self) -> httpx.Response:
        """Return the answer as httpx's. To read its body, use `http_exchange.pieces_of`, which has bounds."""
        return httpx.Response(self.status_code, headers=self.headers, stream=self)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        data = b"" if self._connection is None else await self._connection.read()
        if not data:
            raise StopAsyncIteration
        return data

    async def aclose(self) -> None:
        """Idempotent."""
        connection, self._connection = self._connection, None
        if connection is None or not connection.finish():
            return
        connection.idle_since = asyncio.get_running_loop().time()
        self._idle.append(connection)
        if len(self._idle) > MAX_IDLE:
            self._idle.popleft().close()


def transport_to(url: httpx.URL, tls: TlsSpec = NO_TLS) -> httpx.AsyncBaseTransport:
    """Return the transport to the server at `url`: persistent connections, or httpx's own through the environment's
    proxy for it. Raises `CatalogError` for files of certificates that cannot be used."""
    if not proxy_url(url):
        return HttpTransport(url, tls)
    return ProxyingTransport(httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_IDLE), tls)


def proxy_url(url: httpx.URL) -> str:
    """Return the URL of the proxy of the environment for `url`, as it is written there, with a scheme; "" for none."""
    proxies = getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all") or ""
    is_near = is_loopback_url_host(url.host) or is_metadata_host(url.host)
    if not proxy or is_near or _is_exempt(url, proxies.get("no", "")):
        return ""
    with suppress(OSError):
        if proxy_bypass(url.host):
            return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def shown_proxy(proxy: str) -> str:
    """Return the URL of a proxy for an error or a log: without its user and password."""
    scheme, _, rest = proxy.partition("://")
    return f"{scheme}://{re.split('[/?#]', rest, maxsplit=1)[0].rpartition('@')[2]}"


def ask(method: str, url: str, timeout: float, **options: Any) -> httpx.Response:
    """Send a request as `httpx.request` does, by the environment's proxy for it. Blocks. Raises `httpx.HTTPError`,
    `httpx.InvalidURL`."""
    with httpx.Client(transport=BlockingTransport(), timeout=timeout) as client:
        return client.request(method, url, **options)


class ProxyingTransport(httpx.AsyncBaseTransport):
    """httpx's transport, directly or through the environment's proxy for each URL. Errors name the proxy."""

    def __init__(self, limits: httpx.Limits | None = None, tls: TlsSpec = NO_TLS) -> None:
        self._limits = limits or httpx.Limits(max_connections=100, max_keepalive_connections=20)
        self._trust = trust_of(tls)
        self._by_proxy: dict[str, httpx.AsyncHTTPTransport] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """See `httpx.AsyncBaseTransport`. Raises `httpx.TransportError`."""
        name = proxy_url(request.url)
        if name not in self._by_proxy:
            self._by_proxy[name] = httpx.AsyncHTTPTransport(
                verify=self._trust.of_httpx, proxy=_proxy(name), limits=self._limits
            )
        try:
            response = await self._by_proxy[name].handle_async_request(request)
        except _UNREACHED as error:
            raise _by(name, error, self._trust) from error
        if name and response.status_code == httpx.codes.PROXY_AUTHENTICATION_REQUIRED:
            await response.aclose()
            raise _unauthorised(name)
        return response

    async def aclose(self) -> None:
        """Close every connection."""
        for transport in self._by_proxy.values():
            await transport.aclose()


class BlockingTransport(httpx.BaseTransport):
    """The same for clients that block."""

    def __init__(self) -> None:
        self._by_proxy: dict[str, httpx.HTTPTransport] = {}
        self._trust: Trust | None = None

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """See `httpx.BaseTransport`. Raises `httpx.TransportError`."""
        name = proxy_url(request.url)
        if name not in self._by_proxy:
            self._trust = self._trust or trust_of()
            self._by_proxy[name] = httpx.HTTPTransport(verify=self._trust.of_httpx, proxy=_proxy(name))
        try:
            response = self._by_proxy[name].handle_request(request)
        except _UNREACHED as error:
            raise _by(name, error, self._trust) from error
        if name and response.status_code == httpx.codes.PROXY_AUTHENTICATION_REQUIRED:
            response.close()
            raise _unauthorised(name)
        return response

    def close(self) -> None:
        """Close every connection."""
        for transport in self._by_proxy.values():
            transport.close()


def _proxy(name: str) -> httpx.Proxy | None:
    """Raises `httpx.ProxyError` for one that cannot be used."""
    if not name:
        return None
    scheme = name.partition("://")[0].lower()
    if scheme not in _SCHEMES:
        raise httpx.ProxyError(f"the proxy {shown_proxy(name)} is none of {', '.join(_SCHEMES)}")
    if scheme.startswith("socks") and find_spec("socksio") is None:
        raise httpx.ProxyError(f"the proxy {shown_proxy(name)} needs the library socksio: pip install 'httpx[socks]'")
    try:
        return httpx.Proxy(name)
    except (httpx.InvalidURL, ValueError):
        raise httpx.ProxyError(f"the proxy {shown_proxy(name)} is no URL") from None


def _by(name: str, error: httpx.TransportError, trust: Trust | None) -> httpx.TransportError:
    way = f"through the proxy {shown_proxy(name)}: " if name else ""
    return type(error)(f"{way}{judged(error, trust)}")


def _unauthorised(name: str) -> httpx.ProxyError:
    return httpx.ProxyError(f"the proxy {shown_proxy(name)} answered 407: it wants another user or password")


def _is_exempt(url: httpx.URL, exempt: str) -> bool:
    """Whether `NO_PROXY` names the host: by itself, as the end of its name with or without `.` or `*.` before it, by
    address, or by network; with a port only for that one."""
    names = {url.host.lower().rstrip("."), url.raw_host.decode("ascii").lower().rstrip(".")}
    port = url.port or {"http": 80, "https": 443}.get(url.scheme)
    try:
        addresses = addresses_of(plain_host(url.host))
    except ValueError:
        addresses = []
    for entry in re.split(r"[,\s]+", exempt.lower()):
        plain = entry.partition("://")[2] or entry
        if plain == "*":
            return True
        with suppress(ValueError):
            network = ipaddress.ip_network(plain.strip("[]"), strict=False)
            if any(address.version == network.version and address in network for address in addresses):
                return True
            continue
        host, colon, stated = plain.rpartition(":")
        if colon and stated.isdecimal():
            if int(stated) != port:
                continue
            plain = host.strip("[]")
        suffix = plain.removeprefix("*").strip(".")
        if suffix and any(name == suffix or name.endswith(f".{suffix}") for name in names):
            return True
    return False


def request_bytes(request: httpx.Request) -> bytes:
    """Return the request as bytes for the wire. Its body must be complete (`httpx.ByteStream`)."""
    assert isinstance(request.stream, httpx.ByteStream)
    return head_bytes(request.method, request.url, request.headers.raw) + b"\r\n" + b"".join(request.stream)


def head_bytes(method: str, url: httpx.URL, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the request line and `headers`, each with the end of its line."""
    return f"{method} ".encode() + url.raw_path + b" HTTP/1.1\r\n" + header_lines(headers)


def header_lines(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return `headers`, each with the end of its line."""
    return b"".join([name + b": " + value + b"\r\n" for name, value in headers])


def headers_by_name(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the values by lower-case name; several of one name are joined by commas (RFC 9110, 5.3)."""
    values: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        values[name] = f"{values[name]}, {value}" if name in values else value
    return values
