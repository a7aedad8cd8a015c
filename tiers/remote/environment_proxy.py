"""Which proxy of the environment a request goes through, for every client of the product, and transports that do so.

`HTTP_PROXY`, `HTTPS_PROXY` and `ALL_PROXY` name one, and where the system has settings of its own (macOS, Windows)
these. `NO_PROXY` exempts. This machine and a cloud's metadata server are never asked through a proxy: a key for them
would leave, and the proxy's own machine is another one.
"""

import ipaddress
import re
from contextlib import suppress
from importlib.util import find_spec
from typing import Any
from urllib.request import getproxies, proxy_bypass

import httpx

from tiers.server_words import addresses_of, is_loopback_url_host, is_metadata_host, plain_host

_SCHEMES = ("http", "https", "socks5", "socks5h")
_UNREACHED = (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError)


def proxy_url(url: httpx.URL) -> str:
    """Return the URL of the proxy of the environment for `url`, as it is written there, with a scheme; "" for none."""
    known = getproxies()
    proxy = known.get(url.scheme) or known.get("all") or ""
    is_near = is_loopback_url_host(url.host) or is_metadata_host(url.host)
    if not proxy or is_near or _is_exempt(url, known.get("no", "")):
        return ""
    with suppress(OSError):
        if proxy_bypass(url.host):
            return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def shown_proxy(proxy: str) -> str:
    """Return the URL of a proxy for an error or a log: without its user and password."""
    scheme, _, rest = proxy.partition("://")
    return f"{scheme}://{re.split('[/?#]', rest, maxsplit=1)[0].rpartition('@')[2]}"


def ask(method: str, url: str, timeout: float, **sent: Any) -> httpx.Response:
    """Send a request as `httpx.request` does, by the environment's proxy for it. Blocks. Raises `httpx.HTTPError`,
    `httpx.InvalidURL`."""
    with httpx.Client(transport=BlockingTransport(), timeout=timeout) as client:
        return client.request(method, url, **sent)


class ProxyingTransport(httpx.AsyncBaseTransport):
    """httpx's transport, directly or through the environment's proxy for each URL. Errors name the proxy."""

    def __init__(self, limits: httpx.Limits | None = None) -> None:
        self._limits = limits or httpx.Limits(max_connections=100, max_keepalive_connections=20)
        self._by_proxy: dict[str, httpx.AsyncHTTPTransport] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """See `httpx.AsyncBaseTransport`. Raises `httpx.TransportError`."""
        name = proxy_url(request.url)
        if name not in self._by_proxy:
            self._by_proxy[name] = httpx.AsyncHTTPTransport(proxy=_proxy(name), limits=self._limits)
        try:
            response = await self._by_proxy[name].handle_async_request(request)
        except _UNREACHED as error:
            raise _by(name, error) from error
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

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """See `httpx.BaseTransport`. Raises `httpx.TransportError`."""
        name = proxy_url(request.url)
        if name not in self._by_proxy:
            self._by_proxy[name] = httpx.HTTPTransport(proxy=_proxy(name))
        try:
            response = self._by_proxy[name].handle_request(request)
        except _UNREACHED as error:
            raise _by(name, error) from error
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


def _by(name: str, error: httpx.TransportError) -> httpx.TransportError:
    if not name:
        return error
    return type(error)(f"through the proxy {shown_proxy(name)}: {error}")


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
