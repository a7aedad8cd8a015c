"""Which catalogue is served where none is named."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from gateway.base.settings import Settings

CATALOG_FILE = "aio.toml"
"""Name of the catalogue that `aio init` writes and `aio serve` takes by default."""


class DefaultCatalog(NamedTuple):
    """The catalogue that is used where none is named, and why."""

    catalog: str
    reason: str


def default_catalog(environment: Mapping[str, str]) -> DefaultCatalog:
    """Return `aio.toml` in the current folder, else in `$XDG_CONFIG_HOME/aio` (`~/.config/aio`), else `laptop`."""
    if Path(CATALOG_FILE).is_file():
        return DefaultCatalog(CATALOG_FILE, "found in this folder")
    configured = Path(environment.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "aio" / CATALOG_FILE
    if configured.is_file():
        return DefaultCatalog(str(configured), f"no {CATALOG_FILE} in this folder")
    return DefaultCatalog("laptop", f"the demonstration model: there is no {CATALOG_FILE}; `aio init` writes one")


def catalog_reason(settings: Settings) -> str:
    """Return why the catalogue of `settings` is used."""
    found = default_catalog(os.environ)
    return found.reason if found.catalog == settings.catalog else "as named by --catalog or AIO_CATALOG"
