"""Checks the URLs that telemetry is sent to, before anything is sent."""

import ipaddress
import socket
import threading
from contextlib import suppress

import httpx

from gateway.base.settings import SettingsError
from tiers.server_words import is_metadata_address, is_metadata_host

# How long a start waits for a name server.
LOOKUP_SECONDS = 2.0


def telemetry_url(setting: str, address: str) -> httpx.URL:
    """Return the URL of `setting`. Raises `SettingsError` unless it is http or https with a host that is not a cloud's
    metadata server; the value is not repeated, since it may contain a key."""
    try:
        url = httpx.URL(address)
    except httpx.InvalidURL as error:
        raise SettingsError(f"{setting} is not a URL: {error}") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise SettingsError(f"{setting} must be an http or https URL with a host")
    if is_metadata_host(url.host):
        raise SettingsError(f"{setting} is a cloud's metadata address, so AIO sends nothing there")
    return url


def refuse_metadata_behind(setting: str, url: httpx.URL) -> None:
    """Check a URL used by a library that does not show its connections: raises `SettingsError` if an address of the
    host is a cloud's metadata server.

    Blocks for at most `LOOKUP_SECONDS`. A name without an address by then is left to the library.
    """
    for address in _addresses_of(url.host):
        if is_metadata_address(address):
            raise SettingsError(f"{setting} resolves to {address}, a cloud's metadata address; AIO sends nothing there")


def _addresses_of(host: str) -> list[str]:
    """Return None if the host is an address: `telemetry_url` has checked that one."""
    addresses: list[str] = []

    def look_up() -> None:
        # An invalid name raises UnicodeError.
        with suppress(OSError, UnicodeError):
            addresses.extend([str(answer[4][0]) for answer in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)])

    try:
        ipaddress.ip_address(host)
    except ValueError:
        # A daemon thread, because a lookup cannot be cancelled.
        looking = threading.Thread(target=look_up, name="lookup", daemon=True)
        looking.start()
        looking.join(LOOKUP_SECONDS)
    return addresses
