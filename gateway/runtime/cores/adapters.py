"""The LoRA adapters of the core behind a gateway: listed, loaded and unloaded while it serves."""

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from gateway.base.errors import ApiError, bad_request
from gateway.runtime.cores.knobs import PART, CoreKnobs
from gateway.runtime.cores.passed_adapters import LoadedAdapter, loaded_into
from gateway.runtime.cores.reading import core_gone, read_answering, read_cores, require_cores
from inference_core.errors import CoreGoneError, InvalidRequestError
from inference_core.protocol import AdapterInfo
from inference_core.transport.client import CoreClient
from quality.store.queries import KnobChange
from tiers.catalog.catalog import CatalogInUse

KNOB = "adapter"
"""Names of loads and unloads in the audit trail."""


class ModelAdapters(msgspec.Struct, frozen=True, kw_only=True):
    """The adapters of a model. Counts are since start."""

    slots: int
    """How many can be resident at once."""
    installs: int
    evictions: int
    adapters: list[AdapterInfo]


class CoreAdapters:
    """Controls `cores` by name (none: every tier is remote).

    Every load and unload, and every refusal, is recorded in `trail` as a change of the knob `adapter`: from the
    previous name to the served name and folder. `folder`: the only one that adapters may be in, symbolic links
    resolved; None for any. The tiers of `catalog` keep the adapters that they bind. `loaded`: see
    `Engine.adapters`; what a core answers is noted there at once, since it may die before the next look at it.
    """

    def __init__(
        self,
        cores: Mapping[str, CoreClient],
        trail: CoreKnobs,
        folder: Path | None = None,
        *,
        catalog: CatalogInUse,
        loaded: Mapping[str, dict[str, list[LoadedAdapter]]],
    ) -> None:
        self._cores, self._trail, self._folder = dict(cores), trail, folder
        self._catalog, self._loaded = catalog, loaded

    async def served_names(self) -> list[str]:
        """Return `MODEL:ADAPTER` of every adapter that new requests may name, of the cores that answer."""
        there, _ = await read_cores(self._cores)
        models = [model for stats in there.values() for model in stats.models]
        return [f"{model.name}:{info.name}" for model in models for info in model.adapters if not info.leaving]

    async def by_model(self) -> dict[str, ModelAdapters]:
        """Return the adapters of every model of the cores that answer. Raises `ApiError` 503 if none does."""
        there = await read_answering(self._cores)
        return {
            model.name: ModelAdapters(
                slots=model.adapter_slots,
                installs=model.adapter_installs,
                evictions=model.adapter_evictions,
                adapters=model.adapters,
            )
            for stats in there.values()
            for model in stats.models
        }

    async def load(self, model: str, name: str, path: str, actor: str) -> list[AdapterInfo]:
        """Load the PEFT folder `path`, on the core's machine; return the model's adapters.

        Raises `ApiError`: 400 naming the parameter and the reason, 503 without a core.
        """
        core_name = self._core_of(model)
        if self._folder is not None and not await asyncio.to_thread(_is_in, self._folder, path):
            await self._write_down(actor, model, None, f"{name}: {path}", "outside AIO_ADAPTER_DIR")
            raise bad_request(
                "path: adapters are loaded from the folder of AIO_ADAPTER_DIR only.", "path", "invalid_value"
            )
        try:
            adapters = await self._cores[core_name].load_adapter(model, name, path)
        except InvalidRequestError as error:
            await self._write_down(actor, model, None, f"{name}: {path}", str(error))
            raise bad_request(f"{error}.", error.param, "invalid_value") from None
        except CoreGoneError as error:
            raise core_gone(error) from error
        self._loaded[core_name][model] = loaded_into(model, adapters)
        await self._write_down(actor, model, None, f"{name}: {path}")
        return adapters

    async def unload(self, model: str, name: str, actor: str) -> list[AdapterInfo]:
        """Unload an adapter, at once or after its last request; return the model's adapters.

        Raises `ApiError`: 404 if it is not there, 409 while a tier binds it, 503 without a core.
        """
        core_name = self._core_of(model)
        if bound := [spec.name for spec in self._catalog.current.tiers if spec.model == model and spec.adapter == name]:
            reason = f"adapter {name!r} belongs to {', '.join(bound)} in the catalogue; change it there and reload"
            await self._write_down(actor, model, name, None, reason)
            raise ApiError(409, f"{reason}.", param="name", code="adapter_bound")
        try:
            adapters = await self._cores[core_name].unload_adapter(model, name)
        except InvalidRequestError as error:
            await self._write_down(actor, model, name, None, str(error))
            raise ApiError(404, f"{error}.", param=error.param, code="adapter_not_found") from None
        except CoreGoneError as error:
            raise core_gone(error) from error
        self._loaded[core_name][model] = loaded_into(model, adapters)
        await self._write_down(actor, model, name, None)
        return adapters

    async def _write_down(
        self, actor: str, model: str, old: str | None, new: str | None, refused: str | None = None
    ) -> None:
        change = KnobChange(
            created_at=time.time(),
            actor=actor,
            part=PART,
            model=model,
            knob=KNOB,
            old_value=old,
            new_value=new,
            refused=refused,
        )
        await self._trail.write_down([change])

    def _core_of(self, model: str) -> str:
        """Return the name of the core with `model`, or of one that reports that there is no such model."""
        require_cores(self._cores)
        return next((name for name, core in self._cores.items() if model in core.models), next(iter(self._cores)))


def _is_in(folder: Path, path: str) -> bool:
    """Resolve symbolic links; an invalid path is in no folder."""
    try:
        return Path(path).resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError):
        return False
