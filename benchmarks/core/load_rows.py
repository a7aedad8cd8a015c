"""One load measured as one row of a benchmark in rounds, and a core with enough KV memory for it."""

import time
from pathlib import Path
from typing import Any

import msgspec

from gateway.planning.load_test.run import LoadRun, ProgressHook, busy_share, percentile, summary
from gateway.planning.load_test.workload import BenchOptions, Load
from inference_core.engine.live_knobs import start_knobs
from inference_core.kv_cache.layout import KVLayout
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loading.load_core import layout_of
from inference_core.model_spec import CoreSpec, ModelSpec
from inference_core.protocol import Knobs


async def load_row(run: LoadRun, load: Load, api: str, progress: ProgressHook = lambda _: None) -> dict[str, Any]:
    """The columns of `aio bench core`, and two more: `e2e_p95_ms`, and `slowest_stream_tok_s`, the fewest tokens per
    second that any answer came with after its first token (None without such answers)."""
    notes = {"api": api, "busy_before": await busy_share()}
    began = time.perf_counter()
    timings = await run.measured(load, progress)
    row = summary(load.columns, timings, time.perf_counter() - began, BenchOptions(), notes)
    done = [timing for timing in timings if timing.error is None]
    p95 = percentile((timing.e2e for timing in done), 0.95)
    slowest = max((later for timing in done if (later := timing.seconds_per_later_token)), default=None)
    return row | {
        "e2e_p95_ms": None if p95 is None else round(p95 * 1e3, 4),
        "slowest_stream_tok_s": None if slowest is None else round(1 / slowest, 4),
    }


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
