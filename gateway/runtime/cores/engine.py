"""The tiers of a process and the cores behind them: in this process, in others, or none."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial

from gateway.base.settings import Settings
from gateway.base.stores.retries import RestartPauses, background, cancelled_at_end, retry_until_success
from gateway.runtime.core_factory import core_problem_key
from gateway.runtime.cores.core_clients import core_clients
from gateway.runtime.cores.core_swap import ReloadableCore
from gateway.runtime.cores.next_core import not_loaded, require_machine, until_loaded
from gateway.runtime.cores.passed_adapters import AdapterRefusedError, LoadedAdapter, lacking, loaded_into, pass_on
from inference_core.errors import CoreError
from inference_core.transport.client import CoreClient
from inference_core.transport.event_client import EventClient
from tiers.build import ReloadableTier, build_targets, build_tiers, require_a_key
from tiers.catalog.catalog import CPU_CORE, Catalog
from tiers.engines import StatusOf
from tiers.errors import CatalogError, MissingKeyError
from tiers.local.text_threads import TextThreads
from tiers.tier import Tier

log = logging.getLogger(__name__)

WATCH_SECONDS = 1.0
# How long a start waits for remote tiers and for cores elsewhere before it continues without them.
FIRST_ANSWER_SECONDS = 5.0

LoadFailed = Callable[[str, Exception], None]


class Engine:
    """The tiers, and a client of each of their cores by name.

    `away` names the cores that are gone or still load, models that are still packed, and servers that have not
    answered, with the reason; other tiers go on. `targets`: by name; a reload changes the mapping. `adapters`: what was
    loaded into each core while it served, by core and model, for the core that takes its place.
    """

    def __init__(self, tiers: Sequence[Tier], cores: Mapping[str, CoreClient], targets: Sequence[Tier] = ()) -> None:
        self.tiers = {tier.number: tier for tier in tiers}
        self.targets = {target.name: target for target in targets}
        self.cores = dict(cores)
        self.away: dict[str, str] = {}
        self.adapters: dict[str, dict[str, list[LoadedAdapter]]] = {name: {} for name in cores}
        self._loading: dict[str, asyncio.Future[None]] = {}

    async def start(self) -> None:
        """Start every core with all its models, one after another, and its tiers."""
        for name, core in self.cores.items():
            await self._start_core(name)
            await until_loaded(core)

    @asynccontextmanager
    async def loading(self, failed: LoadFailed) -> AsyncIterator[None]:
        """Load the cores of this process while the context is open, and keep them running; `failed` is called with
        one that cannot be loaded, and the reason."""
        async with AsyncExitStack() as stack:
            for name in self.cores:
                self.away[core_problem_key(name)] = "loads its models"
                self._loading[name] = asyncio.get_running_loop().create_future()
                await stack.enter_async_context(background(partial(self._load, name, failed), core_problem_key(name)))
            yield

    async def first_tier_serves(self) -> None:
        """Return once the first tier that has a core serves, whatever other cores still load. Raises what keeps a core
        from loading."""
        names = [tier.core_name for _, tier in sorted(self.tiers.items())]
        first = next((self._loading[name] for name in names if name in self._loading), None)
        waits = set(self._loading.values())
        while first in waits:
            done, waits = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()

    async def stay_connected(self, name: str, tried: asyncio.Event) -> None:
        """Connect to a core in another process, again whenever the connection is lost. Sets `tried` after the first."""
        problem = core_problem_key(name)

        async def attempt() -> None:
            try:
                await self._start_core(name)
            finally:
                tried.set()

        while True:
            await retry_until_success(attempt, problem, self.away, WATCH_SECONDS)
            await self._until_lost(name)

    async def keep_running(self, name: str) -> None:
        """Start a core of this process again whenever it dies; one that is closed stays so."""
        core, problem, pauses = self.cores[name], core_problem_key(name), RestartPauses()
        while True:
            await self._until_lost(name)
            if core.gone is not None and not core.died:
                return
            while problem in self.away:
                pause = pauses.after_end()
                log.warning("%s is started again in %g s", problem, pause)
                await asyncio.sleep(pause)
                try:
                    await self._start_core(name)
                except Exception as error:
                    self.away[problem] = f"{type(error).__name__}: {error}"
                    log.error("%s cannot be started again: %s", problem, error)
                else:
                    del self.away[problem]
                    log.info("%s is back", problem)
                pauses.note_start()

    async def _load(self, name: str, failed: LoadFailed) -> None:
        problem, loaded = core_problem_key(name), self._loading[name]
        try:
            await self._start_core(name)
        except Exception as error:
            self.away[problem] = f"{type(error).__name__}: {error}"
            if not loaded.done():
                loaded.set_exception(error)
            loaded.exception()  # no warning if it is not awaited
            failed(problem, error)
            return
        self.away.pop(problem, None)
        with suppress(CoreError):
            await self._note_models(name)
        if not loaded.done():
            loaded.set_result(None)
        await self.keep_running(name)

    async def _until_lost(self, name: str) -> None:
        """Return when a core does not answer any more; until then, note its adapters and what it still loads."""
        try:
            while True:
                await self._note_models(name)
                await asyncio.sleep(WATCH_SECONDS)
        except CoreError as error:
            problem = core_problem_key(name)
            self.away[problem] = str(error)
            log.warning("lost %s: %s", problem, error)

    async def _note_models(self, name: str) -> None:
        stats = await self.cores[name].stats()
        self.adapters[name] = {m.name: loaded_into(m.name, m.adapters) for m in stats.models}
        for model in stats.models:
            self.away.pop(f"model {model.name}", None)
        for waiting in not_loaded(stats):
            self.away[f"model {waiting}"] = "its weights are packed, once; its requests wait"

    @asynccontextmanager
    async def starting_elsewhere(self) -> AsyncIterator[None]:
        """Start the tiers on servers elsewhere; those that do not answer yet are retried while the context is open, and
        are down until then. Raises `CatalogError` for one that can never start."""
        async with AsyncExitStack() as stack:
            elsewhere = [tier for tier in self.tiers.values() if tier.core_name is None and tier.engine() is None]
            elsewhere += self.targets.values()
            starting = [asyncio.ensure_future(self._first_start(tier)) for tier in elsewhere]
            for task in starting:
                await stack.enter_async_context(cancelled_at_end(task))
            if starting:
                await asyncio.wait(starting, timeout=FIRST_ANSWER_SECONDS, return_when=asyncio.FIRST_EXCEPTION)
            for tier, task in zip(elsewhere, starting, strict=True):
                if task.done() and not task.result():
                    name = f"start of {_name_of(tier)}"
                    await stack.enter_async_context(background(partial(self._keep_starting, tier), name))
            yield

    async def _first_start(self, tier: Tier) -> bool:
        """Start a tier as soon as its server answers; return False at once for one without its key, which the start of
        this process need not wait for."""
        try:
            await self._keep_starting(tier, MissingKeyError)
        except MissingKeyError:
            return False
        return True

    async def _keep_starting(self, tier: Tier, *fatal: type[Exception]) -> None:
        """Retried without its key, too: a reload may replace the tier. A target that it removed starts no more."""

        async def start() -> None:
            if not tier.is_target or self.targets.get(tier.name) is tier:
                await tier.start()

        name = _name_of(tier)
        self.away.setdefault(name, "has not answered yet")
        await retry_until_success(start, name, self.away, WATCH_SECONDS, fatal=(CatalogError, *fatal))

    async def close(self) -> None:
        """Stop the tiers, then disconnect the cores."""
        for tier in (*self.tiers.values(), *self.targets.values()):
            await tier.close()
        for core in self.cores.values():
            await core.close()

    async def _start_core(self, name: str) -> None:
        """Connect to a core while its tiers are prepared, then start them; running ones are left alone. It gets the
        adapters that were loaded into the core before it; one that it refuses is logged."""
        core = self.cores[name]
        preparing = asyncio.ensure_future(self._prepare_tiers(name))
        async with cancelled_at_end(preparing):
            await core.start()
            await preparing
        await self._start_tiers(name)
        for adapter in [each for of_model in self.adapters[name].values() for each in of_model]:
            try:
                await pass_on([adapter], core)
            except AdapterRefusedError as error:
                # Another gateway process may have loaded it first.
                if lacking([adapter], await core.stats()):
                    log.warning("%s", error)

    async def _prepare_tiers(self, core_name: str) -> None:
        for tier in self.tiers.values():
            if tier.core_name == core_name:
                await tier.prepare()

    async def _start_tiers(self, core_name: str | None) -> None:
        for tier in self.tiers.values():
            if tier.core_name == core_name:
                await tier.start()


@asynccontextmanager
async def running_engine(
    settings: Settings,
    catalog: Catalog,
    tiers: Sequence[Tier] | None = None,
    cores: Mapping[str, CoreClient] | None = None,
    threads: TextThreads | None = None,
    engine_status: Mapping[str, StatusOf] | None = None,
    load_failed: LoadFailed | None = None,
    queued: Callable[[Tier], Tier] | None = None,
) -> AsyncIterator[Engine]:
    """Run the engine of this process; `tiers` and `cores` replace the catalogue's, as tests do. `threads`: where tiers
    tokenise long prompts. `engine_status`: the states of the catalogue's engine programs, which the caller runs;
    without it they run here, and the block starts once all of them are ready.

    In the role `all` a core that cannot load stops the start, with the reason, and one that dies later is started
    again. With `load_failed` the block begins while the cores still load (`Engine.first_tier_serves`), and it is called
    with one that cannot be loaded, and the reason. In the role `gateway` every tier serves as soon as its core is
    there, from the start on if it answers then. A remote tier that is down stops nothing: it serves once it answers.
    `queued`: puts the requests of a tier into the chat queue; nothing is computed here then, and no key is needed.
    """
    async with AsyncExitStack() as programs:
        through: Callable[[Tier], Tier] = (lambda tier: tier) if queued is None else queued
        if tiers is None:
            if queued is None:
                require_a_key(catalog, os.environ)
            if cores is None:
                if settings.role == "all":
                    await require_machine(catalog, settings, catalog.core_names)
                cores = core_clients(catalog, settings)
            if engine_status is None:
                from gateway.runtime.engines.running_engines import running_engines

                running = await programs.enter_async_context(running_engines(catalog, settings.data_path))
                await running.ready()
                engine_status = running.status
            # No reference to the tiers themselves stays here: a replaced one is freed with its last request.
            tiers = [_reloadable(through(tier)) for tier in build_tiers(catalog, cores, threads, engine_status)]
            if settings.role == "all":
                cores = {name: _replaceable(name, core) for name, core in cores.items()}
        else:
            tiers = [through(tier) for tier in tiers]
        targets = [ReloadableTier(through(target)) for target in build_targets(catalog)]
        async with _started(settings, Engine(tiers, cores or {}, targets), load_failed) as engine:
            yield engine


def _name_of(tier: Tier) -> str:
    return f"target {tier.name}" if tier.is_target else f"tier {tier.number}"


def _reloadable(tier: Tier) -> Tier:
    """What an engine's process computes needs a new process of AIO to be replaced, and so do the GPU groups' tiers."""
    return tier if tier.core_name not in (None, CPU_CORE) or tier.engine() is not None else ReloadableTier(tier)


def _replaceable(name: str, core: CoreClient) -> CoreClient:
    """The CPU core of this process can be replaced (`CoreSwap`); a second GPU group would need the cards' memory."""
    return ReloadableCore(core) if name == CPU_CORE and isinstance(core, EventClient) else core


@asynccontextmanager
async def _started(settings: Settings, engine: Engine, load_failed: LoadFailed | None) -> AsyncIterator[Engine]:
    try:
        async with AsyncExitStack() as stack:
            if settings.role == "gateway" and engine.cores:
                engine.away |= {core_problem_key(name): "not connected yet" for name in engine.cores}
                tried = {name: asyncio.Event() for name in engine.cores}
                for name, event in tried.items():
                    await stack.enter_async_context(
                        background(partial(engine.stay_connected, name, event), core_problem_key(name))
                    )
                # Of a core that is there the tiers serve from the first request on: another gateway may end now.
                with suppress(TimeoutError):
                    async with asyncio.timeout(FIRST_ANSWER_SECONDS):
                        for event in tried.values():
                            await event.wait()
            elif load_failed is not None:
                await stack.enter_async_context(engine.loading(load_failed))
            else:
                await engine.start()
                for name in engine.cores:
                    await stack.enter_async_context(
                        background(partial(engine.keep_running, name), core_problem_key(name))
                    )
            await stack.enter_async_context(engine.starting_elsewhere())
            yield engine
    finally:
        await engine.close()
