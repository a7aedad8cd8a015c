"""The engines of a catalogue, for a process: started here by exactly one process of a data folder, followed elsewhere.

The owner holds a lock, writes each engine's state to a file next to it, and ends the engine with itself. Other
processes read the file, and one that may own engines takes over once the lock is free.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec

from gateway.base.stores.followed_file import FollowedFile
from gateway.base.stores.retries import background
from gateway.runtime.engines.engine_process import TIMING, EngineProcess, Timing
from inference_core.io.files import FILE_FORM, tried_lock
from tiers.catalog.catalog import Catalog
from tiers.engines import EngineSpec, EngineStatus
from tiers.errors import CatalogError

log = logging.getLogger(__name__)

FOLLOW_SECONDS = 0.2
_UNKNOWN = EngineStatus(state="starting", detail="its process is not known yet")


class ManagedEngine:
    """One engine as this process sees it; `status` never blocks."""

    def __init__(self, name: str, spec: EngineSpec, folder: Path, secret: list[str], timing: Timing) -> None:
        self._name, self._spec, self._folder = name, spec, folder
        self._secret, self._timing = secret, timing
        self._process: EngineProcess | None = None
        self._read = _UNKNOWN
        self._file = FollowedFile(self._path, self._take, f"figures of engine '{name}'")

    def status(self) -> EngineStatus:
        """Return the latest known state."""
        return self._read if self._process is None else self._process.status

    async def own(self) -> None:
        """Run it as soon as no other process does; until then, follow that one."""
        while True:
            with tried_lock(self._folder / f"{self._name}.lock") as is_ours:
                if is_ours:
                    process = EngineProcess(
                        self._name, self._spec, self._folder, self._write, secret=self._secret, timing=self._timing
                    )
                    self._process = process
                    await process.keep()
            self._file.refresh()
            await asyncio.sleep(FOLLOW_SECONDS)

    async def follow(self) -> None:
        """Read what its owner writes."""
        await self._file.follow(FOLLOW_SECONDS)

    def kill(self) -> None:
        """End it without a grace period, if it runs here."""
        if self._process is not None:
            self._process.kill()

    @property
    def _path(self) -> Path:
        return self._folder / f"{self._name}.json"

    def _write(self, status: EngineStatus) -> None:
        # Not fsynced: a state is worth nothing after a power failure.
        temporary = self._path.with_suffix(".tmp")
        try:
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(msgspec.json.encode(status))
            temporary.replace(self._path)
        except OSError as error:
            log.warning("the state of engine '%s' is not written: %s", self._name, error)

    def _take(self, content: bytes) -> None:
        self._read = msgspec.json.decode(content, type=EngineStatus)


class RunningEngines:
    """All engines of a catalogue."""

    def __init__(self, engines: dict[str, ManagedEngine]) -> None:
        self._engines = engines

    @property
    def status(self) -> dict[str, Callable[[], EngineStatus]]:
        """Functions that return each engine's state, by its name in `Catalog.engines`."""
        return {name: engine.status for name, engine in self._engines.items()}

    async def ready(self) -> None:
        """Wait until every engine is ready. Raises `CatalogError` with the reason once one has failed."""
        # Polled: other processes may own them.
        while not all(engine.status().state == "ready" for engine in self._engines.values()):
            for name, engine in self._engines.items():
                if engine.status().state == "down":
                    raise CatalogError(f"tier '{name}': {engine.status().detail}")
            await asyncio.sleep(FOLLOW_SECONDS)

    def kill(self) -> None:
        """End those that run here without a grace period."""
        for engine in self._engines.values():
            engine.kill()


@asynccontextmanager
async def running_engines(
    catalog: Catalog, data: Path, *, owned: bool = True, timing: Timing = TIMING
) -> AsyncIterator[RunningEngines]:
    """Run the catalogue's engines while the context is open, or only follow them unless `owned`; waits for none.

    States, locks and logs are in the folder `engines` of `data`.
    """
    folder = data / "engines"
    secret = _key_variables(catalog)
    if catalog.engines:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    engines = {name: ManagedEngine(name, spec, folder, secret, timing) for name, spec in catalog.engines.items()}
    async with AsyncExitStack() as stack:
        for name, engine in engines.items():
            await stack.enter_async_context(background(engine.own if owned else engine.follow, f"engine {name}"))
        yield RunningEngines(engines)


def _key_variables(catalog: Catalog) -> list[str]:
    """Return the environment variables with the keys of servers elsewhere, or with the files of these, which no program
    on this machine needs."""
    remotes = [tier.remote for tier in (*catalog.tiers, *catalog.targets) if tier.remote is not None]
    names = {server.api_key_env for remote in remotes for server in remote.servers}
    names |= {remote.api_key_env for remote in remotes}
    return sorted(form for name in names if name is not None for form in (name, name + FILE_FORM))
