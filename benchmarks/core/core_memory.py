"""The KV memory of a model, and a core with enough of it for a load."""

from pathlib import Path

import msgspec

from inference_core.engine.live_knobs import start_knobs
from inference_core.kv_cache.layout import KVLayout
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loading.load_core import layout_of
from inference_core.model_spec import CoreSpec, ModelSpec
from inference_core.protocol import Knobs


def layout_in(spec: ModelSpec, cache_dir: Path) -> KVLayout:
    """How the model's keys and values lie in memory."""
    return layout_of(spec, open_checkpoint(resolve_model_path(spec.path), cache_dir).config)


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
