"""Opens one model of a core for a measurement: alone in this process, on a thread of its own, closed at the end."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from gateway.planning.load_test.run import CoreTarget
from inference_core.errors import ModelFileError
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.loading.load_core import load_core
from inference_core.model_spec import CoreSpec, ModelSpec
from inference_core.protocol import Knobs
from inference_core.tokenization.load_tokenizer import load_tokenizer
from inference_core.transport.core_thread import ThreadCoreClient


def model_of(core: CoreSpec, name: str | None) -> ModelSpec:
    """The model `name` of `core`, or its first. Raises `ModelFileError`."""
    for spec in core.models:
        if name in (None, spec.name):
            return spec
    names = ", ".join(spec.name for spec in core.models) or "none"
    raise ModelFileError(f"the core has no model {name!r}; it has {names}")


@asynccontextmanager
async def core_target(
    core: CoreSpec, spec: ModelSpec, cache_dir: Path, knobs: Knobs | None = None, *, draft: ModelSpec | None = None
) -> AsyncIterator[CoreTarget]:
    """`spec`, with its `draft` or alone, on a core with the arena and threads of `core`. Raises what `load_core`
    raises."""
    models = [msgspec.structs.replace(spec, draft=None)] if draft is None else [spec, draft]
    alone = msgspec.structs.replace(core, models=models)
    client = ThreadCoreClient(lambda: load_core(alone, cache_dir, knobs=knobs))
    await client.start()
    try:
        yield CoreTarget(client, load_tokenizer(resolve_model_path(spec.path)), spec.name)
    finally:
        await client.close()
