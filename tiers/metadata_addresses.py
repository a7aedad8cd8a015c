"""Addresses at which clouds tell a machine its credentials. No server of ours is there, so nothing is sent to them."""

import ipaddress
from collections.abc import Sequence

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
# Link-local is where AWS, Azure and Google have theirs; the others are AWS's by IPv6, Alibaba's and Oracle's.
METADATA: Sequence[Network] = [
    ipaddress.ip_network(network)
    for network in ("169.254.0.0/16", "fe80::/10", "fd00:ec2::254/128", "100.100.100.200/32", "192.0.0.192/32")
]
METADATA_NAMES = frozenset({"metadata", "metadata.google.internal", "instance-data", "instance-data.ec2.internal"})
# Networks in which an IPv6 address holds an IPv4 one in its last bits: NAT64, and IPv4-compatible ones.
_HOLDING = [ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("::/96")]


def is_metadata_host(host: str) -> bool:
    """Whether a name or an address, as a URL has it, is one of them; a name is not looked up."""
    return host.rstrip(".").lower() in METADATA_NAMES or is_metadata_address(host)


def is_metadata_address(address: str) -> bool:
    """Whether an address is one of them, however it is written; False for what is none."""
    try:
        parsed = ipaddress.ip_address(address.strip("[]").partition("%")[0])
    except ValueError:
        return False
    found: list[ipaddress.IPv4Address | ipaddress.IPv6Address] = [parsed]
    if isinstance(parsed, ipaddress.IPv6Address):
        found += [inner for inner in (parsed.ipv4_mapped, parsed.sixtofour) if inner is not None]
        if any(parsed in network for network in _HOLDING):
            found.append(ipaddress.IPv4Address(int(parsed) & 0xFFFFFFFF))
    return any(one in network for one in found for network in METADATA)
