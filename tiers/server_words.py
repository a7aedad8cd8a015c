"""What is safe with servers elsewhere: their words in headers, labels, paths and logs, and where nothing is sent.

At the addresses of clouds' credential services no server of ours is, so nothing is sent to them.
"""

import ipaddress
import re
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import unquote

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


Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
# AWS, Azure and Google use link-local addresses; the others are AWS's by IPv6, Alibaba's and Oracle's.
METADATA: Sequence[Network] = [
    ipaddress.ip_network(network)
    for network in ("169.254.0.0/16", "fe80::/10", "fd00:ec2::254/128", "100.100.100.200/32", "192.0.0.192/32")
]
METADATA_NAMES = frozenset({
    "metadata", "metadata.google.internal", "metadata.goog", "metadata.tencentyun.com", "instance-data",
    "instance-data.ec2.internal",
})  # fmt: skip
_LOOPBACK_NAMES = frozenset({"localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"})
# Networks whose IPv6 addresses end in an IPv4 address: NAT64 and IPv4-compatible ones.
_HOLDING = [ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("::/96")]
_LONGEST_NUMBER = 64
_LONGEST_HEAD = 8192
"""Characters of a URL up to the end of its host; the rest, such as an image, is not looked at."""
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
# What no host name has, once it is decoded and mapped (https://url.spec.whatwg.org/#forbidden-domain-code-point).
_NO_HOST = re.compile(r"[\x00-\x20\x7f#%/:<>?@\[\\\]^|]")
_STRIPPED = "".join(map(chr, range(0x21)))
_SPECIAL = ("http", "https", "ws", "wss", "ftp", "file")
_URL = re.compile(rf"(?:{'|'.join(_SPECIAL)}|data):|(?:[a-z][a-z0-9+.-]*:)+[/\\]|[/\\]{{2}}", re.IGNORECASE)


def is_metadata_host(host: str) -> bool:
    """Return whether a URL's host name or address is one of them, however it is written; names are not resolved."""
    try:
        name = plain_host(host)
    except ValueError:
        return False
    return name in METADATA_NAMES or is_metadata_address(name)


def is_metadata_address(address: str) -> bool:
    """Return whether an address, in any notation, is one of them; False for anything that is no address."""
    try:
        addresses = addresses_of(plain_host(address))
    except ValueError:
        return False
    return any(part in network for meant in addresses for part in (meant, *_inner(meant)) for network in METADATA)


def is_loopback_url_host(host: str) -> bool:
    """Return whether a URL's host can only mean this machine, however it is written; names are not resolved."""
    try:
        name = plain_host(host)
        addresses = [part for meant in addresses_of(name) for part in (*_inner(meant), meant)]
    except ValueError:
        return False
    return _is_loopback_name(name) or any(address.is_loopback or address.is_unspecified for address in addresses)


def looks_like_url(text: str) -> bool:
    """Return whether a text that may be bytes in base64, too, is one that a library would open."""
    return _URL.match(_trimmed(text)) is not None


def url_problem(url: str) -> str:
    """Return why no server is to open a caller's `url`; "" for a data: URL, or a public address by http or https.

    Judged as a browser and as more lenient libraries read it. Names are not resolved."""
    text = _trimmed(url)
    scheme, colon, rest = text.partition(":")
    if colon and scheme.lower() == "data":
        return ""
    if not colon or scheme.lower() not in ("http", "https"):
        return "it is no http:, https: or data: URL"
    authority = re.split("[/?#]", rest.removeprefix("//"), maxsplit=1)[0]
    user, _, host = authority.rpartition("@")
    # Readers do not agree on what these mean.
    if not rest.startswith("//") or "@" in user or re.search(r"[\x00-\x20\\/?#]", unquote(authority)):
        return "it is not well formed"
    matched = re.fullmatch(r"(\[[^\[\]]*\]|[^:\[\]]+)(?::[0-9]{0,5})?", host)
    try:
        return "it has no valid host" if matched is None else host_problem(matched[1])
    except ValueError:
        return "it has no valid host"


def host_problem(host: str) -> str:
    """Return why no server is to open a caller's URL with this host; "" for a public one. Raises ValueError for what is
    no host."""
    name = plain_host(host)
    addresses = addresses_of(name)
    if name in METADATA_NAMES:
        return "its host is a cloud's metadata server"
    if _is_loopback_name(name):
        return "its host is the server's own machine"
    reached = [part for address in addresses for part in (_inner(address) or [address])]
    is_public = all(address.is_global and not address.is_multicast for address in reached)
    is_metadata = any(address in network for address in (*reached, *addresses) for network in METADATA)
    return "" if is_public and not is_metadata else "its host is no public address"


def _trimmed(text: str) -> str:
    """Return the beginning of a text, without what browsers take from a URL."""
    return re.sub(r"[\t\r\n]", "", text.strip(_STRIPPED)[:_LONGEST_HEAD])


def plain_host(host: str) -> str:
    """Return the host that a URL's means: percent-decoded, mapped as by IDNA (UTS 46), without brackets, zone and final
    dot. Raises ValueError for what is none."""
    if host.startswith("[") or host.count(":") > 1:
        return str(ipaddress.IPv6Address(_mapped(unquote(host).strip("[]").partition("%")[0])))
    name = _mapped(unquote(host, errors="strict"))
    if not name or _NO_HOST.search(name):
        raise ValueError("no host")
    return name.rstrip(".")


def _mapped(text: str) -> str:
    """Return the text in lower case, with compatible characters for others, such as digits in circles, and without
    those that are not seen."""
    folded = unicodedata.normalize("NFKC", text).casefold().replace("\u3002", ".")
    seen = (char for char in folded if unicodedata.category(char) != "Cf" and not _VARIANTS.match(char))
    return unicodedata.normalize("NFKC", "".join(seen))


# Selectors of variants, and others that IDNA ignores.
_VARIANTS = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\ufe00-\ufe0f\u3164\uffa0\U000e0100-\U000e01ef]")


def addresses_of(name: str) -> list[Address]:
    """Return what a plain host that is an address may mean: IPv6, or IPv4 in any notation that resolvers take (one
    number, hexadecimal, octal, fewer parts), where numbers with a leading 0 have two meanings; [] for a name. Raises
    ValueError for what ends in a number and is no address."""
    if ":" in name:
        return [ipaddress.IPv6Address(name)]
    parts = name.split(".")
    if _NUMBER.fullmatch(parts[-1]) is None:
        return []
    addresses = []
    for octal in (8, 10):
        with suppress(ValueError):
            addresses.append(_ipv4([_number(part, octal) for part in parts]))
    if not addresses:
        raise ValueError("no address")
    return list(dict.fromkeys(addresses))


def _number(part: str, octal: int) -> int:
    """Return the number that a part of an address is; one with a leading 0 is of the base `octal`."""
    if _NUMBER.fullmatch(part) is None or len(part) > _LONGEST_NUMBER:
        raise ValueError("no number")
    if part.startswith("0x"):
        return int(part[2:] or "0", 16)
    return int(part, octal if part.startswith("0") else 10)


def _ipv4(numbers: list[int]) -> Address:
    *first, last = numbers
    if len(first) > 3 or max(first, default=0) > 255 or last >= 256 ** (4 - len(first)):
        raise ValueError("no address")
    return ipaddress.IPv4Address(last + sum(number << (24 - 8 * index) for index, number in enumerate(first)))


def _inner(address: Address) -> list[Address]:
    """Return the IPv4 address that an IPv6 address holds; [] for none."""
    if isinstance(address, ipaddress.IPv4Address):
        return []
    held = [ipv4 for ipv4 in (address.ipv4_mapped, address.sixtofour) if ipv4 is not None]
    if any(address in network for network in _HOLDING):
        held.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return [*held]


def _is_loopback_name(name: str) -> bool:
    return name in _LOOPBACK_NAMES or name.endswith(".localhost")
