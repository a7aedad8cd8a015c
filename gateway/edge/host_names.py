"""Host names by which the gateway may be reached without a key, so that a web page cannot reach it by its own name.

A page's name can be made to resolve to any address after the page was loaded (DNS rebinding); the browser then treats
our answers as the page's own. The Host header still has the page's name. Addresses cannot be rebound.
"""

import ipaddress
import socket
from functools import lru_cache
from urllib.parse import urlsplit


@lru_cache(maxsize=1024)
def host_is_allowed(host: str, bound: str, allowed: str) -> bool:
    """Return whether a Host header names this machine, what the server is `bound` to, or an entry of `allowed`.

    If the server listens beyond this machine, every address is allowed. Entries of `allowed` are separated by commas: a
    name or address, `*.NAME` for all names below one, `*` for all.
    """
    name = hostname_of(host)
    if not name:
        return False
    is_ours = name == bound.lower() if _address(name) is None else not is_loopback_host(bound)
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


def is_loopback_host(host: str) -> bool:
    """Return whether a name or an address can only mean this machine."""
    address = _address(host)
    if address is None:
        return host.lower() == "localhost" or host.lower().endswith(".localhost")
    return bool((getattr(address, "ipv4_mapped", None) or address).is_loopback)


def is_reachable_from_elsewhere(bound: str) -> bool:
    """Return whether a server that is `bound` to a name or an address accepts connections of other machines.

    Names are resolved as a listener resolves them; a name that does not resolve counts as reachable.
    """
    if _address(bound) is not None:
        return not is_loopback_host(bound)
    try:
        found = socket.getaddrinfo(bound or None, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        return True
    return not all(is_loopback_host(str(address[0])) for *_, address in found)


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
