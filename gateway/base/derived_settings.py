"""What follows from a process's settings: where it keeps its state, and what is switched on; and the home folder of a
user who has none."""

import os
import pwd
from collections.abc import MutableMapping
from pathlib import Path
from urllib.parse import urlsplit


class DerivedSettings:
    """What `Settings` has besides its fields, of which these are read; of an empty folder or URL, the usual one."""

    __slots__ = ()
    data_dir: str
    cache_dir: str
    database_url: str
    core_socket: str
    monitor: bool
    sampling_rate: float
    store_texts: bool
    verification_budget: float
    alert_urls: str
    trace_exporter: str
    trace_ratio: float

    @property
    def data_path(self) -> Path:
        """Folder of the database, the journal, the socket and the classifier registry."""
        return Path(self.data_dir) if self.data_dir else _xdg_folder("XDG_DATA_HOME", ".local/share")

    @property
    def cache_path(self) -> Path:
        """Folder of the repacked weights; safe to delete."""
        return Path(self.cache_dir) if self.cache_dir else _xdg_folder("XDG_CACHE_HOME", ".cache")

    @property
    def database(self) -> str:
        """The SQLAlchemy URL of the database."""
        return self.database_url or f"sqlite+aiosqlite:///{self.data_path.absolute() / 'aio.sqlite3'}"

    @property
    def socket_path(self) -> Path:
        """The Unix socket between gateway and core processes."""
        return Path(self.core_socket) if self.core_socket else self.data_path / "core.sock"

    @property
    def knobs_path(self) -> Path:
        """File of the core's changed knobs, which survive a restart."""
        return self.data_path / "knobs.json"

    @property
    def routing_knobs_path(self) -> Path:
        """File of changed routing knobs, shared by the gateway processes of this folder."""
        return self.data_path / "routing_knobs.json"

    @property
    def replica_knobs_path(self) -> Path:
        """File of changed knobs of replica sets, shared by the gateway processes of this folder."""
        return self.data_path / "replica_knobs.json"

    @property
    def batch_knobs_path(self) -> Path:
        """File of changed batch knobs, shared by all processes of this folder."""
        return self.data_path / "batch_knobs.json"

    @property
    def cache_knobs_path(self) -> Path:
        """File of changed knobs of the response cache, shared by the gateway processes of this folder."""
        return self.data_path / "cache_knobs.json"

    @property
    def registry_path(self) -> Path:
        return self.data_path / "classifier"

    @property
    def probes_path(self) -> Path:
        """Folder of the registry of tier probes."""
        return self.data_path / "probes"

    @property
    def journal_path(self) -> Path:
        """Folder of records that the database does not hold yet; each process claims its own subfolder."""
        return self.data_path / "journal"

    @property
    def verifies(self) -> bool:
        """Whether any answer is verified, for which its texts wait in the database."""
        return bool(self.monitor and self.sampling_rate and self.verification_budget and self.store_texts)

    @property
    def alerts_somewhere(self) -> bool:
        """Whether any channel of alerts is set."""
        return bool(self.alert_urls)

    @property
    def traced_share(self) -> float | None:
        """Share of new traces that is recorded; None without an exporter."""
        return None if self.trace_exporter == "none" else self.trace_ratio


def _xdg_folder(variable: str, default: str) -> Path:
    """Return AIO's folder in that of the XDG variable, by default in `default` of the user's home."""
    return Path(os.environ.get(variable) or Path.home() / default) / "aio"


def complete_user(environment: MutableMapping[str, str]) -> None:
    """Set `HOME` and `USER` where they are missing and the user has no entry in the list of users: a container may run
    as any number (OpenShift). Libraries look for both, and Python raises where there is neither.

    Home is then the folder that may be lost (`AIO_CACHE_DIR`), else the data folder, else `/`, which container engines
    take; the name is the user's number. Processes that this one starts inherit them.
    """
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        home = environment.get("AIO_CACHE_DIR", "").strip() or environment.get("AIO_DATA_DIR", "").strip() or "/"
        environment["HOME"] = environment.get("HOME") or os.path.abspath(home)
        environment["USER"] = environment.get("USER") or str(os.getuid())


def without_secrets(url: str) -> str:
    """Return a URL without its password and parameters."""
    parts = urlsplit(url)
    user, at, address = parts.netloc.rpartition("@")
    shown = f"{user.partition(':')[0]}{':***' if ':' in user else ''}{at}{address}"
    return f"{parts.scheme}://{shown}{parts.path}" if parts.scheme else url
