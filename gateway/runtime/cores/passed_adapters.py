"""The adapters that were loaded while a core served, for the core that takes its place (SPEC GW-15, LO-03)."""

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path

import msgspec

from gateway.runtime.cores.reading import PATIENCE_SECONDS
from inference_core.errors import CoreError, InvalidRequestError, ModelFileError
from inference_core.protocol import AdapterInfo, CoreStats
from inference_core.transport.client import CoreClient
from inference_core.transport.core_thread import CoreFactory, SteppingCore
from inference_core.transport.unix_socket import SocketCoreClient

log = logging.getLogger(__name__)

WHAT_TO_DO = ". Unload it, or leave the model as it is"
"""After the reason why a new version of a core cannot take the place of the one that serves."""


class LoadedAdapter(msgspec.Struct, frozen=True):
    """The adapter `name` of `model`, read from the folder `path` on the core's machine."""

    model: str
    name: str
    path: str


class AdapterRefusedError(Exception):
    """A core refuses an adapter that the core before it served; the message names it, with the reason."""


def loaded_adapters(stats: CoreStats) -> list[LoadedAdapter]:
    """Return the adapters that requests may name and that were loaded since; the catalogue's end with it."""
    return [adapter for model in stats.models for adapter in loaded_into(model.name, model.adapters)]


def loaded_into(model: str, adapters: Iterable[AdapterInfo]) -> list[LoadedAdapter]:
    """`loaded_adapters` of one model, of all of its adapters."""
    return [
        LoadedAdapter(model, adapter.name, adapter.path)
        for adapter in adapters
        if not adapter.leaving and not adapter.listed
    ]


def lacking(adapters: Iterable[LoadedAdapter], stats: CoreStats) -> list[LoadedAdapter]:
    """Return those of `adapters` that a core with `stats` has a model for, and no adapter of that name."""
    there = {model.name: {adapter.name for adapter in model.adapters} for model in stats.models}
    return [adapter for adapter in adapters if adapter.name not in there.get(adapter.model, {adapter.name})]


async def pass_on(adapters: Iterable[LoadedAdapter], core: CoreClient) -> None:
    """Load what `core` lacks of `adapters`. Raises `AdapterRefusedError` for the first refused, and `CoreGoneError`."""
    for adapter in lacking(adapters, await core.stats()):
        try:
            await core.load_adapter(adapter.model, adapter.name, adapter.path)
        except InvalidRequestError as error:
            raise _refused(adapter, error) from error


def inheriting(load: CoreFactory, address: Path) -> CoreFactory:
    """Return a function that loads a core by `load`, with the adapters of the core that listens at `address`.

    It raises `ModelFileError` if one of them does not fit: the other core is to serve on. Of a core that does not
    answer no adapters are known, which is logged.
    """

    def load_inheriting() -> SteppingCore:
        core = load()
        try:
            for adapter in lacking(asyncio.run(_adapters_at(address)), core.stats("adapters")):
                try:
                    core.load_adapter(adapter.model, adapter.name, adapter.path)
                except (InvalidRequestError, ModelFileError) as error:
                    raise ModelFileError(f"{_refused(adapter, error)}{WHAT_TO_DO}") from error
        except BaseException:
            core.close()
            raise
        return core

    return load_inheriting


async def _adapters_at(address: Path) -> list[LoadedAdapter]:
    core = SocketCoreClient(address)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await core.start()
            return loaded_adapters(await core.stats())
    except (CoreError, TimeoutError) as error:
        log.warning(
            "the core at %s does not answer (%s), so adapters that were loaded into it are not passed on",
            address,
            str(error) or f"within {PATIENCE_SECONDS:g} s",
        )
        return []
    finally:
        await core.close()


def _refused(adapter: LoadedAdapter, error: Exception) -> AdapterRefusedError:
    return AdapterRefusedError(
        f"the adapter {adapter.model}:{adapter.name}, loaded while a core served, is refused by the one after it: "
        f"{error}"
    )
