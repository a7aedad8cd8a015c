"""What each arithmetic and each KV cache of a model gives and costs on this machine: speed, memory and quality side by
side (SPEC FR-04). No setting is best: each row is a choice.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import msgspec

from gateway.planning.load_test.run import ProgressHook, core_target, run_bench
from gateway.planning.load_test.workload import BenchOptions
from inference_core.kv_cache.layout import CpuKVDtype
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loading.load_core import layout_of, use_threads
from inference_core.model_spec import Compute, CoreSpec, ModelSpec
from quality.evaluation.effort import Effort
from quality.evaluation.model_outputs import Side, Variant
from quality.evaluation.quantised_model import compare_models

EXACT = Variant("float32", "float32")
COMPUTES: tuple[Compute, ...] = ("float32", "bfloat16", "int4", "int4-int8")
CACHES: tuple[CpuKVDtype, ...] = ("float32", "bfloat16", "int8")

Compared = Callable[[str, float], None]
"""Called with the stage of a comparison and the share of it that is done."""


class Setting(msgspec.Struct, frozen=True):
    """One way to compute a model."""

    compute: Compute
    """Arithmetic of its layers."""
    kv_dtype: CpuKVDtype
    """Numbers of its KV cache."""


class Tradeoff(msgspec.Struct, frozen=True, kw_only=True):
    """One setting's figures."""

    compute: Compute
    kv_dtype: CpuKVDtype
    weights_mb: float
    """Megabytes of packed weights."""
    kv_bytes_per_token: int
    tokens_per_second: dict[int, float]
    """By requests in flight, of all answers together."""
    ttft_p50_ms: dict[int, float]
    """By requests in flight."""
    perplexity_rise: float
    """Over that of float32 on the package's prose, minus one."""
    top1: float
    """Share of positions with float32's most likely token."""
    same_first_token: float
    """Share of short questions whose answer begins with float32's token."""


def usual_settings(spec: ModelSpec) -> list[Setting]:
    """Return each arithmetic with a cache in bfloat16, then the model's own arithmetic with each other cache."""
    settings = [Setting(compute, "bfloat16") for compute in COMPUTES]
    return settings + [Setting(spec.compute, cache) for cache in CACHES if cache != "bfloat16"]


async def tradeoffs(
    core: CoreSpec,
    spec: ModelSpec,
    cache_dir: Path,
    settings: Sequence[Setting],
    load: BenchOptions,
    effort: Effort,
    *,
    measuring: ProgressHook,
    comparing: Compared,
) -> AsyncIterator[Tradeoff]:
    """Measure each setting of `spec` on a core with the arena and threads of `core`, and compare it with float32.

    Raises ModelFileError for a setting that the model's shapes do not allow, and MemoryPlanError.
    """
    config = open_checkpoint(resolve_model_path(spec.path), cache_dir).config
    for setting in settings:
        changed = msgspec.structs.replace(spec, compute=setting.compute, kv_dtype=setting.kv_dtype, adapters={})
        async with core_target(core, changed, cache_dir) as target:
            rows = [row async for row in run_bench(target, load, measuring)]
            weights = target.client.models[spec.name].weight_bytes
        report = compare_models(
            Side(spec.path, EXACT),
            Side(spec.path, Variant(setting.compute, setting.kv_dtype)),
            cache_dir,
            limits={},
            effort=effort,
            progress=comparing,
        )
        use_threads(core.threads)
        first = report.first_tokens
        yield Tradeoff(
            compute=setting.compute,
            kv_dtype=setting.kv_dtype,
            weights_mb=weights / 1e6,
            kv_bytes_per_token=layout_of(changed, config).bytes_per_token,
            tokens_per_second={row["concurrency"]: row["out_tok_s"] for row in rows},
            ttft_p50_ms={row["concurrency"]: row["ttft_p50_ms"] for row in rows},
            perplexity_rise=report.text.perplexity_rise,
            top1=report.text.top1,
            same_first_token=0.0 if first is None else first.same_first_token / first.short_questions,
        )
