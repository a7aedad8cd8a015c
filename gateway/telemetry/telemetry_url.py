"""The URLs that telemetry is sent to, checked before anything is."""

import ipaddress
import socket
import threading
from contextlib import suppress

import httpx

from gateway.settings import SettingsError
from tiers.metadata_addresses import is_metadata_address, is_metadata_host

# How long a name server may let a start wait.
LOOKUP_SECONDS = 2.0


def telemetry_url(setting: str, given: str) -> httpx.URL:
    """What `setting` names. Raises `SettingsError` unless it is http or https with a host that is no cloud's metadata;
    what was given is not repeated, since it may hold a key."""
    try:
        url = httpx.URL(given)
    except httpx.InvalidURL as error:
        raise SettingsError(f"{setting} is no URL: {error}") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise SettingsError(f"{setting} must be an http or https URL with a host")
    if is_metadata_host(url.host):
        raise SettingsError(f"{setting} is where clouds have their metadata; nothing is sent there")
    return url


def refuse_metadata_behind(setting: str, url: httpx.URL) -> None:
    """For what is sent by libraries, which do not show whom they are connected to: raises `SettingsError` where one of
    the addresses of the host's name is a cloud's metadata.

    Blocks for `LOOKUP_SECONDS` at most. A name that has no address by then is left to the library.
    """
    for address in _addresses_of(url.host):
        if is_metadata_address(address):
            raise SettingsError(
                f"{setting} leads to {address}, where clouds have their metadata; nothing is sent there"
            )


def _addresses_of(host: str) -> list[str]:
    """None where the host is an address already: that one `telemetry_url` has judged."""
    found: list[str] = []

    def look_up() -> None:
        # An odd name is a UnicodeError.
        with suppress(OSError, UnicodeError):
            found.extend([str(answer[4][0]) for answer in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)])

    try:
        ipaddress.ip_address(host)
    except ValueError:
        # A thread that nobody has to wait for: a lookup cannot be ended.
        looking = threading.Thread(target=look_up, name="lookup", daemon=True)
        looking.start()
        looking.join(LOOKUP_SECONDS)
    return found
