"""Opens one model of a core for a measurement: alone in this process, on a thread of its own, closed at the end."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from inference_core.bench.target import CoreTarget
from inference_core.engine.live_knobs import start_knobs
from inference_core.errors import ModelFileError
from inference_core.kv_cache.layout import KVLayout
from inference_core.loaders.model_path import resolve_model_path
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loading.load_core import layout_of, load_core
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


def layout_in(spec: ModelSpec, cache_dir: Path) -> KVLayout:
    """How the model's keys and values lie in memory."""
    return layout_of(spec, open_checkpoint(resolve_model_path(spec.path), cache_dir).config)


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


def roomy(
    core: CoreSpec, spec: ModelSpec, cache_dir: Path, *, sequences: int, tokens_each: int
) -> tuple[CoreSpec, Knobs]:
    """`core` with an arena and knobs that let `sequences` of `tokens_each` tokens run at once, where it has less.

    A prompt counts a tenth more tokens than it has words, and each sequence a block to spare.
    """
    layout = layout_in(spec, cache_dir)
    blocks = sequences * (-(-int(tokens_each * 1.1) // layout.block_size) + 1)
    slabs = -(-blocks // layout.blocks_per_slab(core.slab_bytes))
    knobs = start_knobs(core)[spec.name]
    return (
        msgspec.structs.replace(core, arena_bytes=max(core.arena_bytes, slabs * core.slab_bytes)),
        msgspec.structs.replace(knobs, max_num_seqs=max(knobs.max_num_seqs, sequences)),
    )
