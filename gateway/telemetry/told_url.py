"""The URLs that telemetry is sent to, checked before anything is."""

import httpx

from gateway.settings import SettingsError
from tiers.metadata_addresses import is_metadata_host


def told_url(setting: str, given: str) -> httpx.URL:
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
