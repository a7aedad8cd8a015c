"""What each technique is worth: alone, on top of those before it, and as part of the full system."""

import itertools
import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from inference_core.bench.allocation_study import AllocationResult, CacheDemand, study_allocation
from inference_core.bench.arm import ArmTask, LoadKind, run_in_process
from inference_core.bench.measurement import Measurement, Row
from inference_core.bench.mixed_load import mixed_jobs
from inference_core.bench.rounds import Spread, ratio, spread
from inference_core.bench.techniques import (
    COMPUTES,
    FEATURES,
    FULL,
    TECHNIQUES,
    Arm,
    DecodingFeature,
    Technique,
    alone,
    arms,
    changed,
    in_full,
    ladder,
    of_feature,
)
from inference_core.kv_cache.layout import KVLayout
from inference_core.model_spec import ModelSpec

COLUMNS = (
    "out_tok_s",
    "ttft_p50_ms",
    "ttft_p99_ms",
    "itl_p50_ms",
    "itl_p99_ms",
    "running_mean",
    "kv_mb_mean",
    "peak_resident_mb",
)

_STUDIED = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class AblationOptions:
    """The mixed load has `requests` per configuration, `concurrency` of them in flight, and `arena_mb` of KV memory.

    The small load, for what is slow, has `small_requests`, `small_concurrency` in flight; of the load that copies, as
    many requests come one after the other. Raises `ValueError`.
    """

    rounds: int = 3
    requests: int = 64
    concurrency: int = 32
    small_requests: int = 4
    small_concurrency: int = 2
    arena_mb: int = 192
    seed: int = 7
    timeout: float = 900.0

    def __post_init__(self) -> None:
        for name in ("rounds", "requests", "concurrency", "small_requests", "small_concurrency", "arena_mb"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """Ratios with / without, by column: over the baseline alone, and in the full system.

    `interaction`: the effect on throughput in the full system, over the effect alone. Above 1 the rest of the system
    makes the technique worth more, below 1 it does part of its work.
    """

    technique: str
    small: bool
    alone: dict[str, Spread | None]
    full: dict[str, Spread | None] | None
    interaction: float | None


class FeatureEffect(msgspec.Struct, frozen=True, kw_only=True):
    """Ratios with / without a decoding feature in the full system, by column."""

    feature: str
    load: LoadKind
    without: str
    ratios: dict[str, Spread | None]


class Rung(msgspec.Struct, frozen=True, kw_only=True):
    """A step of the ladder: figures of the system with this technique and all before it, ratios to the rung before."""

    technique: str
    small: bool
    configuration: str
    figures: dict[str, Spread | None]
    step: dict[str, Spread | None] | None


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """The full system computing in another arithmetic; ratios to float32."""

    compute: str
    weights_mb: float
    figures: dict[str, Spread | None]
    ratios: dict[str, Spread | None]


class AblationResults(msgspec.Struct, frozen=True, kw_only=True):
    """`allocation`: requests and waste by allocator, in equal memory (see `study_allocation`)."""

    ladder: list[Rung]
    effects: list[Effect]
    features: list[FeatureEffect]
    computes: list[Variant]
    allocation: dict[str, AllocationResult]


RunArm = Callable[[ArmTask], Awaitable[dict[str, Any]]]


async def ablate(
    options: AblationOptions,
    model: ModelSpec,
    measurement: Measurement,
    *,
    cache_dir: Path,
    layout: KVLayout,
    slab_bytes: int,
    threads: int | None,
    progress: Callable[[str, int, int], None] = lambda label, done, total: None,
    run_arm: RunArm = run_in_process,
) -> AblationResults:
    """Measure every arm in every round, odd rounds backwards, as far as `measurement` lacks it, and finish it.

    `layout` is the model's in BF16, for the study of allocators. Raises `ArmError`.
    """
    wanted = [(turn, arm) for turn in range(options.rounds) for arm in (arms()[::-1] if turn % 2 else arms())]
    for done, (turn, arm) in enumerate(wanted):
        progress(f"round {turn + 1}/{options.rounds}: {arm.label}", done, len(wanted))
        if measurement.find(round=turn, arm=arm.label) is None:
            task = ArmTask(
                configuration=arm.configuration,
                model=model,
                cache_dir=str(cache_dir),
                seed=options.seed + turn,
                load=arm.load,
                requests=options.requests if arm.load == "mixed" else options.small_requests,
                concurrency={"mixed": options.concurrency, "small": options.small_concurrency, "copy": 1}[arm.load],
                arena_bytes=options.arena_mb * 2**20,
                slab_bytes=slab_bytes,
                threads=threads,
                timeout=options.timeout,
            )
            measurement.add({"round": turn, "arm": arm.label} | await run_arm(task))
    progress("done", len(wanted), len(wanted))
    results = results_of(measurement.rows, allocation_of(options, layout))
    measurement.finish(msgspec.to_builtins(results))
    return results


def allocation_of(options: AblationOptions, layout: KVLayout) -> dict[str, AllocationResult]:
    """Contiguous and paged allocation of more of the mixed load, words counted as tokens; memory alone limits both."""
    jobs = mixed_jobs(options.seed, _STUDIED)
    demands = [CacheDemand(len(job.prompt.split()), job.output_tokens, job.limit or job.output_tokens) for job in jobs]
    capacity = options.arena_mb * 2**20 // layout.bytes_per_token
    return study_allocation(demands, capacity=capacity, block_size=layout.block_size, concurrency=len(jobs))


def results_of(rows: Sequence[Row], allocation: dict[str, AllocationResult]) -> AblationResults:
    """What the rows of all rounds say."""
    table = _Table(rows)
    rungs = ladder()
    return AblationResults(
        ladder=[
            Rung(
                technique=name,
                small=arm.small,
                configuration=arm.configuration.label,
                figures=table.figures(arm),
                step=table.ratios(before, arm) if before is not None and before.small == arm.small else None,
            )
            for before, (name, arm) in zip([None, *(a for _, a in rungs)], rungs, strict=False)
        ],
        effects=[_effect(table, technique) for technique in TECHNIQUES],
        features=[_feature(table, feature) for feature in FEATURES],
        computes=[_variant(table, compute) for compute in COMPUTES],
        allocation=allocation,
    )


def _effect(table: "_Table", technique: Technique) -> Effect:
    alone_pair, full_pair = alone(technique), in_full(technique)
    by_itself = table.ratios(alone_pair.without, alone_pair.having)
    full = None if full_pair is None else table.ratios(full_pair.without, full_pair.having)
    first, second = by_itself["out_tok_s"], full["out_tok_s"] if full else None
    interaction = second.median / first.median if first and second and first.median else None
    return Effect(technique=technique.name, small=technique.slow, alone=by_itself, full=full, interaction=interaction)


def _feature(table: "_Table", feature: DecodingFeature) -> FeatureEffect:
    pair = of_feature(feature)
    ratios = table.ratios(pair.without, pair.having)
    return FeatureEffect(
        feature=feature.name, load=feature.load, without=pair.without.configuration.label, ratios=ratios
    )


def _variant(table: "_Table", compute: str) -> Variant:
    arm, base = (Arm(changed(FULL, {"compute": name})) for name in (compute, COMPUTES[0]))
    weights = statistics.median(row["weights_mb"] for row in table.rows_of(arm))
    return Variant(compute=compute, weights_mb=weights, figures=table.figures(arm), ratios=table.ratios(base, arm))


class _Table:
    """Rows by arm, in the order of rounds."""

    def __init__(self, rows: Sequence[Row]) -> None:
        ordered = sorted(rows, key=lambda row: (row["arm"], row["round"]))
        self._rows = {label: list(group) for label, group in itertools.groupby(ordered, lambda row: row["arm"])}

    def rows_of(self, arm: Arm) -> list[Row]:
        return self._rows[arm.label]

    def figures(self, arm: Arm) -> dict[str, Spread | None]:
        return {name: spread([row[name] for row in self.rows_of(arm)]) for name in COLUMNS}

    def ratios(self, base: Arm, arm: Arm) -> dict[str, Spread | None]:
        """Of `arm` to `base`, round by round."""
        return {
            name: ratio([row[name] for row in self.rows_of(arm)], [row[name] for row in self.rows_of(base)])
            for name in COLUMNS
        }
