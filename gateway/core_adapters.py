"""The LoRA adapters of the core behind a gateway: listed, loaded and unloaded while it serves."""

import logging
from collections.abc import Mapping

import msgspec

from gateway.core_reading import read_cores
from gateway.errors import ApiError, bad_request
from inference_core.client import CoreClient
from inference_core.errors import CoreGoneError, InvalidRequestError
from inference_core.protocol import AdapterInfo

log = logging.getLogger(__name__)


class ModelAdapters(msgspec.Struct, frozen=True, kw_only=True):
    """The adapters of a model. `slots`: how many may lie ready at once; the counts are since start."""

    slots: int
    installs: int
    evictions: int
    adapters: list[AdapterInfo]


class CoreAdapters:
    """Speaks to `cores` by their names (none: every tier is remote)."""

    def __init__(self, cores: Mapping[str, CoreClient]) -> None:
        self._cores = dict(cores)

    async def by_model(self) -> dict[str, ModelAdapters]:
        """The adapters of every model of the cores that answer. Raises `ApiError` 503 if none does."""
        self._require_cores()
        there, away = await read_cores(self._cores)
        if not there:
            raise _gone(next(iter(away.values())))
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
        """Load the PEFT folder `path`, on the core's machine; the model's adapters then.

        Raises `ApiError`: 400 naming the parameter and the reason, 503 without a core.
        """
        core = self._core_of(model)
        try:
            adapters = await core.load_adapter(model, name, path)
        except InvalidRequestError as error:
            raise bad_request(f"{error}.", error.param, "invalid_value") from None
        except CoreGoneError as error:
            raise _gone(error) from error
        log.info("adapter %s of %s was loaded from %s by %s", name, model, path, actor)
        return adapters

    async def unload(self, model: str, name: str, actor: str) -> list[AdapterInfo]:
        """Unload an adapter, at once or with the last request that has it; the model's adapters now.

        Raises `ApiError`: 404 if it is not there, 503 without a core.
        """
        core = self._core_of(model)
        try:
            adapters = await core.unload_adapter(model, name)
        except InvalidRequestError as error:
            raise ApiError(404, f"{error}.", param=error.param, code="adapter_not_found") from None
        except CoreGoneError as error:
            raise _gone(error) from error
        log.info("adapter %s of %s was unloaded by %s", name, model, actor)
        return adapters

    def _core_of(self, model: str) -> CoreClient:
        """The core that has `model`, or the one that may say that there is no such model."""
        self._require_cores()
        return next((c for c in self._cores.values() if model in c.models), next(iter(self._cores.values())))

    def _require_cores(self) -> None:
        if not self._cores:
            raise ApiError(503, "This server has no core of its own: all its tiers are remote.", code="no_core")


def _gone(error: Exception) -> ApiError:
    return ApiError(503, f"The core is away: {error}.", code="core_unavailable")
