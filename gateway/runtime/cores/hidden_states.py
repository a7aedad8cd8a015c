"""Hidden states for a classifier's encoder, from the core that serves the model: no second copy, and no torch here."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

from classifier.encoders.hidden_state_encoder import Float, StateSpec
from classifier.errors import ArtefactError
from inference_core.errors import ModelFileError
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.loaders.model_file import file_fingerprint
from inference_core.model_spec import ModelSpec
from inference_core.tokenization.load_tokenizer import shared_tokenizer
from inference_core.tokenization.tokenizer import Tokenizer
from inference_core.transport.client import CoreClient
from tiers.catalog.catalog import CPU_CORE, Catalog, CatalogInUse
from tiers.errors import CatalogError

# High priority: the request that waits for the state is not queued at any tier yet.
_PRIORITY = 0


class CoreStates:
    """A `StateSource` over the catalogue's CPU core. A turn whose state takes over `seconds` is routed without it."""

    def __init__(
        self,
        spec: StateSpec,
        catalog: CatalogInUse,
        cores: Mapping[str, CoreClient],
        cache_dir: Path,
        *,
        seconds: float,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`cache_dir`: where hashes of model files are remembered; `loop`: the
        event loop of `cores`."""
        self.spec = spec
        self._catalog, self._core, self._cache_dir, self._seconds = catalog, cores.get(CPU_CORE), cache_dir, seconds
        self._loop = loop
        self._ready: tuple[ModelSpec, Tokenizer] | None = None
        self._failure = "it was not requested"

    def warm(self) -> None:
        """Find the model in the catalogue. Raises `ArtefactError` if the core does not serve it as it was trained on.

        A core in another process may connect later, so its models are checked again with every turn.
        """
        model = require_model(self.spec, self._catalog.current, self._cache_dir)
        if self._core is None or self._core.models:
            self._require_served(model)
        self._ready = model, shared_tokenizer(resolve_model_path(model.path))

    def submit(self, turn: str) -> "Future[Float]":
        """Request the state of one turn by early exit; cancelling frees what it holds in the core."""
        return asyncio.run_coroutine_threadsafe(self._state(turn), self._loop)

    def states(self, turns: Sequence[str]) -> Float:
        """Return states computed ahead; computes nothing: the caller may be the event loop. Raises `ArtefactError`."""
        raise ArtefactError(f"no hidden state of {self.spec.model} was computed ahead: {self._failure}.")

    async def _state(self, turn: str) -> Float:
        try:
            async with asyncio.timeout(self._seconds):
                return await self._embed(turn)
        except TimeoutError:
            self._failure = f"the core did not return one within {self._seconds:g} s"
            raise
        except Exception as error:
            self._failure = str(error)
            raise

    async def _embed(self, turn: str) -> Float:
        if self._ready is None:
            await asyncio.to_thread(self.warm)
        assert self._ready is not None
        model, tokenizer = self._ready
        core = self._require_served(model)
        ids = self.spec.cut(tokenizer.encode(turn))
        deadline = time.monotonic() + self._seconds
        return await core.embed(model.name, ids, self.spec.layer, "mean", priority=_PRIORITY, deadline=deadline)

    def _require_served(self, model: ModelSpec) -> CoreClient:
        """Return the core, if it has loaded what the catalogue says."""
        if self._core is None:
            raise ArtefactError("its encoder reads hidden states, and this gateway has no core")
        served = self._core.models.get(model.name)
        if served is None or (served.model_path, served.compute) != (model.path, model.compute):
            others = (
                ", ".join(f"{m.name} ({m.compute}, {m.model_path})" for m in self._core.models.values()) or "nothing"
            )
            raise ArtefactError(
                f"its encoder reads hidden states of {model.path} ({model.compute}), and the core that answers serves "
                f"{others}: it was started with another catalogue"
            )
        return self._core


def require_model(spec: StateSpec, catalog: Catalog, cache_dir: Path) -> ModelSpec:
    """Return the catalogue's model whose states `spec` reads: the same file and arithmetic, on the CPU.

    Raises `ArtefactError` that lists what is served instead.
    """
    served = []
    for model in catalog.core.models:
        try:
            fingerprint = file_fingerprint(resolve_model_path(model.path), cache_dir)
        except ModelFileError:
            fingerprint = "not on this machine"
        if (fingerprint, model.compute) == (spec.fingerprint, spec.compute):
            return model
        served.append(f"{model.name} ({model.compute}, {fingerprint[:19]})")
    raise ArtefactError(
        f"its encoder reads hidden states of {spec.model} ({spec.compute}, {spec.fingerprint[:12]}), which the core of "
        f"catalogue '{catalog.name}' does not serve; it serves {', '.join(served) or 'nothing'}. Serve that model, "
        "or train an artefact for one that is served: aio classifier train --encoder hidden:MODEL"
    )


def smallest_model(catalog: Catalog) -> str:
    """Return the path of the CPU core's smallest model. Raises `CatalogError` if none is on this machine."""
    sizes = {}
    for model in catalog.core.models:
        with suppress(ModelFileError):
            path = resolve_model_path(model.path)
            files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
            sizes[model.path] = sum(file.stat().st_size for file in files)
    if not sizes:
        raise CatalogError(f"catalogue '{catalog.name}' has no CPU model on this machine: name one, hidden:MODEL")
    return min(sizes, key=lambda path: sizes[path])
