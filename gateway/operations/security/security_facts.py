"""What the items of the deployment checklist look at, and what they return."""

import os
import stat
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from gateway.base.settings import Settings
from gateway.edge.proxies import is_loopback_host, is_reachable_from_elsewhere
from gateway.operations.security.stored_keys import StoredKeys
from tiers.catalog.catalog import Catalog

Status = Literal["ok", "warning", "failed"]


class Facts(NamedTuple):
    """The configuration, and what the machine says about it. `stored` is None while the database cannot be read; `now`
    in epoch seconds; `user`: the id that runs this."""

    settings: Settings
    catalog: Catalog
    stored: StoredKeys | None
    now: float
    user: int

    @property
    def is_reachable(self) -> bool:
        """Whether other machines reach the gateway's address."""
        return is_reachable_from_elsewhere(self.settings.host)

    @property
    def needs_keys(self) -> bool:
        """Whether callers need a key for answers; unread stored keys count as none."""
        return bool(self.settings.api_keys) or (self.stored is not None and self.stored.for_answers)


class Finding(NamedTuple):
    """`says`: one sentence; `mend`: the setting that mends it."""

    status: Status
    says: str
    mend: str = ""


def ok(says: str) -> Finding:
    """Nothing to do."""
    return Finding("ok", says)


def warning(says: str, mend: str) -> Finding:
    """Right in some deployments; the operator has to know."""
    return Finding("warning", says, mend)


def failed(says: str, mend: str) -> Finding:
    """Wrong in every deployment that this configuration can be meant for."""
    return Finding("failed", says, mend)


def host_of(url: str) -> str:
    """Return the host of a URL, never its credentials; "" without one."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def is_plain_and_remote(url: str) -> bool:
    """Return whether a URL sends what it carries unencrypted to another machine."""
    host = host_of(url)
    return url.lower().startswith("http://") and host != "" and not is_loopback_host(host)


def open_mode(path: Path, mask: int) -> int | None:
    """Return the mode of a path that has bits of `mask` for others, and None for one that they cannot use.

    In a folder with the sticky bit only owners replace files; what is mounted read-only cannot be changed.
    """
    mode = path.stat().st_mode
    if mask & 0o055 == 0 and (mode & stat.S_ISVTX or os.statvfs(path).f_flag & os.ST_RDONLY):
        return None
    return stat.S_IMODE(mode) if stat.S_IMODE(mode) & mask else None
