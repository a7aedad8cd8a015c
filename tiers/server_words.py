"""What is safe with servers elsewhere: their words in headers, labels, paths and logs, and where nothing is sent.

At the addresses of clouds' credential services no server of ours is, so nothing is sent to them.
"""

import ipaddress
import re
import socket
from collections.abc import Sequence

MOST_CONTEXT = 100_000_000
"""Tokens; no model has more, and larger numbers would not be those of a context."""
MOST_SHOWN = 1000
# A model's name is a header and a label of metrics: visible ASCII, with single spaces inside at most.
_NAME = re.compile(r"[!-~]+(?: [!-~]+)*")
_LONGEST_NAME = 256


def is_name(text: object) -> bool:
    """Whether `text` may be the name of a model: visible ASCII, at most 256 characters."""
    return isinstance(text, str) and len(text) <= _LONGEST_NAME and _NAME.fullmatch(text) is not None


def context_of(value: object) -> int | None:
    """Return the context, in tokens, that a server gives a model; None for what cannot be one."""
    if isinstance(value, int) and not isinstance(value, bool) and 2 <= value <= MOST_CONTEXT:
        return value
    return None


def one_line(text: str, most: int = MOST_SHOWN) -> str:
    """Return a server's text for an error or a log: without control characters, on one line, and not for long."""
    cut = text[:most]
    if not cut.isprintable():
        cut = "".join(char if char.isprintable() else " " if char.isspace() else "\ufffd" for char in cut)
    return cut if len(text) <= most else cut + "…"


Network = ipaddress.IPv4Network | ipaddress.IPv6Network
# AWS, Azure and Google use link-local addresses; the others are AWS's by IPv6, Alibaba's and Oracle's.
METADATA: Sequence[Network] = [
    ipaddress.ip_network(network)
    for network in ("169.254.0.0/16", "fe80::/10", "fd00:ec2::254/128", "100.100.100.200/32", "192.0.0.192/32")
]
METADATA_NAMES = frozenset({"metadata", "metadata.google.internal", "instance-data", "instance-data.ec2.internal"})
# Networks whose IPv6 addresses end in an IPv4 address: NAT64 and IPv4-compatible ones.
_HOLDING = [ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("::/96")]


def is_metadata_host(host: str) -> bool:
    """Return whether a URL's host name or address is one of them; names are not resolved."""
    name = host.rstrip(".")
    return name.lower() in METADATA_NAMES or is_metadata_address(name)


def is_metadata_address(address: str) -> bool:
    """Return whether an address, in any notation, is one of them; False for anything that is no address."""
    parsed = _parsed(address.strip("[]").partition("%")[0])
    if parsed is None:
        return False
    found: list[ipaddress.IPv4Address | ipaddress.IPv6Address] = [parsed]
    if isinstance(parsed, ipaddress.IPv6Address):
        found += [inner for inner in (parsed.ipv4_mapped, parsed.sixtofour) if inner is not None]
        if any(parsed in network for network in _HOLDING):
            found.append(ipaddress.IPv4Address(int(parsed) & 0xFFFFFFFF))
    return any(one in network for one in found for network in METADATA)


def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address, also of the notations that resolvers take: one number, hexadecimal, octal, fewer parts."""
    try:
        return ipaddress.ip_address(address)
    except ValueError:
        pass
    try:
        return ipaddress.IPv4Address(socket.inet_aton(address))
    except (OSError, ValueError):
        return None
