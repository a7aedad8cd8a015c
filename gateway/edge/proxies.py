"""Whose forwarding headers are believed, and by which host names the gateway may be reached without a key.

Anyone can send `X-Forwarded-For`. A header counts only if the connection comes from a trusted proxy
(AIO_TRUSTED_PROXIES), and of its addresses only those that trusted proxies wrote: from the right, up to the first
address that is no trusted proxy. The same holds for the path below which a proxy serves AIO.

A page's name can be made to resolve to any address after the page was loaded (DNS rebinding); the browser then
treats our answers as the page's own. The Host header still has the page's name. Addresses cannot be rebound.
"""

import asyncio
import ipaddress
import logging
import re
import socket
from collections.abc import Iterable, Sequence
from functools import lru_cache
from urllib.parse import urlsplit

import msgspec

from gateway.base.settings import SettingsError

log = logging.getLogger(__name__)

RESOLVE_SECONDS = 30.0
"""How often host names of proxies are resolved again: a restarted container has another address."""
RETRY_SECONDS = 2.0
START_SECONDS = 2.0
"""How long a start waits for these names."""
_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,62}))*\.?\Z")
_AUTHORITY = re.compile(rb"(?:\[([0-9A-Fa-f:.]+)\]|[A-Za-z0-9._~!$&'()*+,;=%-]*)(?::([0-9]{0,5}))?\Z")
_GONE = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}
_MOST_HOPS = 32
_MOST_ROOT = 256
_ROOT = re.compile(r"(?:/(?!\.{1,2}(?:/|\Z))[A-Za-z0-9._~-]+)+\Z")
_OWN = ("admin", "docs", "health", "metrics", "v1")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Headers = Iterable[tuple[bytes, bytes]]


class ForwardedClient(msgspec.Struct, frozen=True):
    """The client of a request."""

    address: str
    """Empty if unknown."""
    https: bool
    """Whether it speaks TLS with a proxy or with us."""


class TrustedProxies:
    """`setting`: comma-separated addresses, networks and host names. Raises `SettingsError` for anything else.

    Names count once they are resolved: await `resolve` first and keep `follow` running.
    """

    def __init__(self, setting: str) -> None:
        self._networks: list[Network] = []
        self._names: dict[str, frozenset[Address]] = {}
        self._unresolved: set[str] = set()
        for entry in filter(None, (part.strip() for part in setting.split(","))):
            network = _network(entry)
            if network is not None:
                self._networks.append(network)
            elif _NAME.match(entry) and not entry.rpartition(".")[2].isdigit():
                self._names[entry] = frozenset()
            else:
                raise SettingsError(
                    f"AIO_TRUSTED_PROXIES: {entry!r:.64} is not an address, network or host name; an example is "
                    "'10.0.0.5, 10.1.0.0/16, traefik'"
                )

    @property
    def has_names(self) -> bool:
        """Whether there are host names to resolve."""
        return bool(self._names)

    async def resolve(self) -> None:
        """Look up the host names. One that exists no more loses its addresses; other failures change nothing."""
        loop = asyncio.get_running_loop()
        for name, before in self._names.items():
            try:
                resolved = await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            except OSError as error:
                if name not in self._unresolved:
                    log.warning("AIO_TRUSTED_PROXIES: %s was not resolved and will be tried again: %s", name, error)
                self._unresolved.add(name)
                if error.errno in _GONE:
                    self._names[name] = frozenset()
                continue
            self._unresolved.discard(name)
            addresses = [_address(str(sockaddr[0])) for *_, sockaddr in resolved]
            self._names[name] = frozenset(address for address in addresses if address is not None)
            if self._names[name] != before:
                log.info("AIO_TRUSTED_PROXIES: %s is %s", name, ", ".join(sorted(map(str, self._names[name]))))

    async def follow(self) -> None:
        """Resolve again and again until cancelled."""
        while True:
            await asyncio.sleep(RESOLVE_SECONDS if all(self._names.values()) else RETRY_SECONDS)
            await self.resolve()

    def client(self, peer: str | None, scheme: str, headers: Headers) -> ForwardedClient:
        """Return the client of a request that came from the address `peer` by `scheme`.

        `Forwarded` counts only without `X-Forwarded-For`, so a proxy that passes the other on is not deceived.
        """
        nearest, https = _address(peer or ""), scheme in ("https", "wss")
        if nearest is None or not self._trusts(nearest):
            return ForwardedClient(peer or "" if nearest is None else str(nearest), https)
        forwarded = [(name, value.decode("latin-1")) for name, value in headers if name in _HEADERS]
        hops = _listed(b"x-forwarded-for", forwarded)
        protocols = _listed(b"x-forwarded-proto", forwarded)
        if not hops:
            elements = [_parameters(element) for element in _listed(b"forwarded", forwarded)]
            hops = [element.get("for", "") for element in elements]
            protocols = protocols or [element["proto"] for element in elements if "proto" in element]
        for hop in reversed(hops[-_MOST_HOPS:]):
            address = _address(_without_port(hop))
            if address is None:
                # What follows further left was said by an unknown sender.
                break
            nearest = address
            if not self._trusts(address):
                break
        return ForwardedClient(str(nearest), protocols[-1].lower() in ("https", "wss") if protocols else https)

    def root(self, peer: str | None, headers: Headers) -> str:
        """Return the path below which a trusted proxy at `peer` serves us, by its one `X-Forwarded-Prefix`; "" if it
        does not say, and for everything but a plain path."""
        nearest = _address(peer or "")
        if nearest is None or not self._trusts(nearest):
            return ""
        told = [value for name, value in headers if name == b"x-forwarded-prefix"]
        return (root_path(told[0].decode("latin-1")) or "") if len(told) == 1 else ""

    def _trusts(self, address: Address) -> bool:
        return any(address in network for network in self._networks) or any(
            address in addresses for addresses in self._names.values()
        )


_HEADERS = frozenset({b"x-forwarded-for", b"x-forwarded-proto", b"forwarded"})


@lru_cache(maxsize=256)
def is_authority(host: bytes) -> bool:
    """Return whether a Host header is a host name or an address with or without a port (RFC 3986, section 3.2.2)."""
    match = _AUTHORITY.match(host)
    if match is None or int(match[2] or 0) > 65_535:
        return False
    return match[1] is None or (b":" in match[1] and _address(match[1].decode()) is not None)


def root_path(text: str) -> str | None:
    """Return a path below which AIO may be served, without a slash at its end; "" for none, and None for all but a
    plain path: nothing in it leads elsewhere, ends a header or has a meaning in HTML, and it begins as none of ours."""
    text = text.strip().rstrip("/")
    is_plain = len(text) <= _MOST_ROOT and _ROOT.match(text) and text.split("/")[1] not in _OWN
    return text if not text or is_plain else None


def network_of(address: str) -> str:
    """Return what one client can choose from: an IPv4 address itself, of an IPv6 address its network of 64 bits."""
    parsed = _address(address)
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return address


def _listed(wanted: bytes, headers: Sequence[tuple[bytes, str]]) -> list[str]:
    """Return the elements of a header that may come in several lines, without empty ones."""
    text = ",".join(value for name, value in headers if name == wanted)
    return [part.strip() for part in text.split(",") if part.strip()]


def _parameters(element: str) -> dict[str, str]:
    """Return the parameters of an element of `Forwarded` (RFC 7239, section 4)."""
    pairs = (pair.partition("=") for pair in element.split(";"))
    return {name.strip().lower(): value.strip().strip('"') for name, _, value in pairs}


def _without_port(text: str) -> str:
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


def _network(entry: str) -> Network | None:
    try:
        network = ipaddress.ip_network(entry)
    except ValueError as error:
        if "/" in entry:
            raise SettingsError(f"AIO_TRUSTED_PROXIES: {entry!r:.64} is not a network: {error}") from None
        return None
    if network.prefixlen == 0:
        raise SettingsError(f"AIO_TRUSTED_PROXIES: {entry} trusts every client; name the networks of the proxies")
    return network


@lru_cache(maxsize=1024)
def _address(text: str) -> Address | None:
    """Return an address, an IPv4-mapped one as IPv4; None for anything else, also with a zone."""
    if len(text) > 45 or "%" in text:
        return None
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


@lru_cache(maxsize=1024)
def host_is_allowed(host: str, bound: str, allowed: str) -> bool:
    """Return whether a Host header names this machine, what the server is `bound` to, or an entry of `allowed`.

    If the server listens beyond this machine, every address is allowed. Entries of `allowed` are separated by commas: a
    name or address, `*.NAME` for all names below one, `*` for all.
    """
    name = hostname_of(host)
    if not name:
        return False
    ours = [host.lower() for host in hosts_of(bound)]
    is_ours = name in ours if _literal_address(name) is None else not listens_here_alone(bound)
    entries = {entry.strip().lower().removesuffix(".") for entry in allowed.split(",")} - {""}
    parents = {f"*.{name[at + 1 :]}" for at, character in enumerate(name) if character == "."}
    return is_ours or is_loopback_host(name) or not entries.isdisjoint({name, "*", *parents})


def hostname_of(authority: str) -> str:
    """Return the host of `HOST[:PORT]` in lower case, without brackets and a final dot; empty if malformed."""
    try:
        parsed = urlsplit(f"//{authority}")
        is_plain = parsed.netloc == authority and parsed.username is None and (parsed.port is None or parsed.port > 0)
    except ValueError:
        return ""
    return (parsed.hostname or "").removesuffix(".") if is_plain else ""


def hosts_of(bound: str) -> list[str]:
    """Return the names and addresses that a server is bound to, which commas separate."""
    return [host.strip() for host in bound.split(",") if host.strip()] or [""]


def authority_of(host: str, port: int) -> str:
    """Return a host and a port as URLs and messages have them: IPv6 addresses in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listens_here_alone(bound: str) -> bool:
    """Return whether all that a server is bound to can only mean this machine."""
    return all(is_loopback_host(host) for host in hosts_of(bound))


def is_loopback_host(host: str) -> bool:
    """Return whether a name or an address can only mean this machine."""
    address = _literal_address(host)
    if address is None:
        return host.lower() == "localhost" or host.lower().endswith(".localhost")
    return bool((getattr(address, "ipv4_mapped", None) or address).is_loopback)


def is_reachable_from_elsewhere(bound: str) -> bool:
    """Return whether a server that is `bound` to a name or an address accepts connections of other machines.

    Of several, which commas separate, one is enough. Names are resolved as a listener resolves them; a name that does
    not resolve counts as reachable.
    """
    return any(_is_reachable(host) for host in hosts_of(bound))


def _is_reachable(bound: str) -> bool:
    if _literal_address(bound) is not None:
        return not is_loopback_host(bound)
    try:
        addresses = socket.getaddrinfo(bound or None, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        return True
    return not all(is_loopback_host(str(address[0])) for *_, address in addresses)


def _literal_address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
