"""Another version of what this machine's CPU core computes: loaded next to the one that serves, which then drains.
Later commands go to the new one.
"""

import asyncio
import logging
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence

import msgspec

from gateway.base.footprint import trim_heap
from gateway.runtime.cores.passed_adapters import WHAT_TO_DO, AdapterRefusedError, loaded_adapters, pass_on
from inference_core.errors import CoreError, CoreGoneError
from inference_core.io.background_tasks import once
from inference_core.protocol import AdapterInfo, AddRequest, CoreStats, KnobsSet, KnobValue, ModelInfo, SequenceOutput
from inference_core.protocol.kv_blocks import BlockChain, BlockFrame
from inference_core.transport.client import CoreClient
from inference_core.transport.event_client import EventClient
from tiers.build import build_local
from tiers.catalog.catalog import CPU_CORE, Catalog
from tiers.errors import CatalogError, TierError
from tiers.local.local_tier import CoreWatch, LocalTier
from tiers.local.text_threads import TextThreads


class ReloadableCore(CoreClient):
    """Delegates to the active core, for those who ask for a core by its name: knobs, adapters, figures, embeddings.

    Tiers are built on `active` itself, since their tokeniser and their core are of one version.
    """

    def __init__(self, active: EventClient) -> None:
        self.active = active

    async def start(self) -> None:
        await self.active.start()

    async def close(self) -> None:
        await self.active.close()

    @property
    def gone(self) -> str | None:
        return self.active.gone

    @property
    def died(self) -> bool:
        return self.active.died

    @property
    def stuck(self) -> str | None:
        return self.active.stuck

    @property
    def models(self) -> dict[str, ModelInfo]:
        return self.active.models

    def generate(self, request: AddRequest) -> AsyncGenerator[SequenceOutput, None]:
        return self.active.generate(request)

    async def export_blocks(self, chain: BlockChain, first: int, most_bytes: int) -> BlockFrame:
        return await self.active.export_blocks(chain, first, most_bytes)

    async def import_blocks(self, chain: BlockChain, frame: BlockFrame | None = None) -> int:
        return await self.active.import_blocks(chain, frame)

    def unread(self, request_id: str) -> list[SequenceOutput]:
        return self.active.unread(request_id)

    def abort_choice(self, request_id: str, index: int) -> None:
        self.active.abort_choice(request_id, index)

    async def stats(self) -> CoreStats:
        return await self.active.stats()

    async def set_knobs(
        self, changes: Mapping[str, KnobValue], model: str | None = None, *, keep: bool = False
    ) -> KnobsSet:
        return await self.active.set_knobs(changes, model, keep=keep)

    async def load_adapter(self, model: str, name: str, path: str) -> list[AdapterInfo]:
        return await self.active.load_adapter(model, name, path)

    async def unload_adapter(self, model: str, name: str) -> list[AdapterInfo]:
        return await self.active.unload_adapter(model, name)


log = logging.getLogger(__name__)

LOOK_SECONDS = 0.1


class NextVersion(msgspec.Struct, frozen=True, kw_only=True):
    """Started tiers of the CPU core, and `core` if it was loaded for them; None if they are on the core that serves."""

    tiers: list[LocalTier]
    core: EventClient | None


class CoreSwap:
    """Replaces the tiers of the CPU core, and the core if its models or settings differ (SPEC GW-15).

    Both versions are in memory until the last answer of the old one has ended. `core`: what serves now; only a
    `ReloadableCore`, which this process started, can be replaced. `load_core` returns the started CPU core of a
    catalogue, or raises `CatalogError` (`next_core`). A tier that is not answering is let go after `drain_seconds`,
    whatever still refers to it.
    """

    def __init__(
        self,
        core: CoreClient | None,
        load_core: Callable[[Catalog], Awaitable[EventClient]],
        threads: TextThreads,
        drain_seconds: float,
    ) -> None:
        self._load_core, self._threads, self._drain_seconds = load_core, threads, drain_seconds
        self._core = core if isinstance(core, ReloadableCore) else None
        self._retiring: set[asyncio.Task[None]] = set()

    @property
    def is_possible(self) -> bool:
        """Whether this process has a core that can be replaced."""
        return self._core is not None

    def problems(self, before: Catalog, after: Catalog) -> list[str]:
        """Return why the core of `after` cannot replace that of `before` in this process."""
        if after.core == before.core:
            return []
        if self._core is None:
            return [
                "core differs, and runs in another process: restart it, or send SIGUSR2 to `aio serve "
                "--gateway-workers`, which replaces its processes one by one"
            ]
        if not after.core.models:
            return ["core has no models any more, which needs a new process"]
        read = {spec.model for spec in before.embeddings}
        old, new = ({m.name: m for m in catalog.core.models if m.name in read} for catalog in (before, after))
        if old != new:
            return [f"embeddings are read from {', '.join(sorted(old))}, so another version of it needs a new process"]
        return []

    async def load(self, before: Catalog, after: Catalog) -> NextVersion:
        """Load and start what `after` has on the CPU core, while the old version serves. Raises `CatalogError`,
        a `CoreMemoryError` if it does not fit; then nothing is left of it."""
        assert self._core is not None
        core = None if after.core == before.core else await self._loaded(after)
        tiers = build_local(after, CPU_CORE, core or self._core.active, self._threads)
        try:
            for tier in tiers:
                await tier.start()
        except BaseException as error:
            for tier in tiers:
                await tier.close()
            if core is not None:
                await core.close()
            if isinstance(error, TierError | CoreError):
                raise CatalogError(f"a tier of the new catalogue cannot be started: {error}") from error
            raise
        return NextVersion(tiers=tiers, core=core)

    def switch(self, version: NextVersion, replaced: Sequence[LocalTier]) -> None:
        """Send new commands to the version's core, and free `replaced` and the core behind them after their last
        answer. The caller exchanges the tiers in the same turn of the event loop."""
        assert self._core is not None
        old = None
        if version.core is not None:
            old, self._core.active = self._core.active, version.core
        watches = {id(tier.watch): tier.watch for tier in replaced}
        retirement = _retire([weakref.ref(tier) for tier in replaced], list(watches.values()), old, self._drain_seconds)
        task = once(retirement, "end of an old core")
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    async def _loaded(self, after: Catalog) -> EventClient:
        """Return a started core of `after`, with the adapters that were loaded while the old one served."""
        assert self._core is not None
        core = await self._load_core(after)
        try:
            await pass_on(loaded_adapters(await self._core.stats()), core)
        except BaseException as error:
            await core.close()
            if isinstance(error, CoreGoneError):
                raise CatalogError(f"a core ended before the new version could replace the old one: {error}") from error
            if isinstance(error, AdapterRefusedError):
                raise CatalogError(f"{error}{WHAT_TO_DO}") from error
            raise
        return core


async def _retire(
    tiers: list[weakref.ref[LocalTier]], watches: list[CoreWatch], core: EventClient | None, seconds: float
) -> None:
    """Free old `tiers`, and `core` if it is theirs alone, once no answer needs them.

    A request holds its tier from its routing to its end, so a tier without references has none. One that is still
    referenced after `seconds`, by a traceback, has none either if it is not answering.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds

    def needed() -> bool:
        there = [tier for tier in (ref() for ref in tiers) if tier is not None]
        return any(tier.num_running for tier in there) or (bool(there) and loop.time() < deadline)

    try:
        # Polled: references end without an event.
        while needed():  # noqa: ASYNC110
            await asyncio.sleep(LOOK_SECONDS)
        for watch in watches:
            await watch.stop()
        while core is not None and not core.is_idle:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_SECONDS)
    finally:
        if core is not None:
            await core.close()
            await asyncio.to_thread(trim_heap)
            log.info("the old version of the core has answered its last request and is freed")
