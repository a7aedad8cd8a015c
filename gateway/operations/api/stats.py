"""`GET /v1/admin/stats`: current figures of tiers, cores and models, for operators and dashboards."""

from collections.abc import Mapping
from typing import Any

import msgspec
from litestar import get
from litestar.response import Response

from gateway.base.errors import ApiError
from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.operations.csv_export import as_asked
from gateway.operations.running import Operations, operations_of
from gateway.runtime.cores.reading import read_cores
from inference_core.errors import CoreError
from inference_core.protocol import CoreStats, ModelStats
from tiers.attempt import ReplicaStatus
from tiers.tier import Tier


class TierStats(msgspec.Struct, frozen=True, kw_only=True):
    """A tier's queue as routing sees it, and the share of its prompts' tokens that the prefix cache saved since start.

    `core`: the core that computes it, None for a remote tier. `prefix_hit_rate`: cached over prompt tokens, None before
    the first answer. `replicas`: the servers of a tier that has several.
    """

    tier: int
    model: str
    core: str | None
    healthy: bool
    running: int
    waiting: int
    predicted_wait_seconds: float
    prompt_tokens: int
    cached_tokens: int
    prefix_hit_rate: float | None
    replicas: list[ReplicaStatus]


class CoreShown(msgspec.Struct, frozen=True, kw_only=True):
    """A core: its steps, its arena in bytes and free slabs, its models; or why it does not answer."""

    name: str
    problem: str | None = None
    steps: int = 0
    arena_bytes: int = 0
    slab_bytes: int = 0
    slabs_free: int = 0
    models: list[str] = []


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """Tiers by number; the cores behind them; the models of those cores that answer."""

    tiers: list[TierStats]
    cores: list[CoreShown]
    models: list[ModelStats]


@get("/stats", operation_class=describe(None, Stats), summary="Show queues, caches and steps")
async def show_stats(request: HttpRequest) -> Response[Any]:
    """Tiers with their load and prefix hit rate; cores; models with their steps, blocks, knobs and tuning. Query:
    `format`, json or csv: the models."""
    operations = operations_of(request)
    cores = operations.core_knobs.cores
    there, away = await read_cores(cores)
    if cores and not there:
        raise ApiError(503, f"The core is unavailable: {next(iter(away.values()))}.", code="core_unavailable")
    shown = Stats(
        tiers=[_tier_stats(operations, tier) for tier in operations.serving.routing.served.tiers.values()],
        cores=[_core_shown(name, there, away) for name in cores],
        models=[model for stats in there.values() for model in stats.models],
    )
    homes = {model: core.name for core in shown.cores for model in core.models}
    rows = [{"core": homes[model.name], **msgspec.structs.asdict(model)} for model in shown.models]
    return as_asked(request, "models", shown, ("core", *ModelStats.__struct_fields__), rows)


def _core_shown(name: str, there: Mapping[str, CoreStats], away: Mapping[str, CoreError]) -> CoreShown:
    if name in away:
        return CoreShown(name=name, problem=str(away[name]))
    stats = there[name]
    return CoreShown(
        name=name,
        steps=stats.steps,
        arena_bytes=stats.arena_bytes,
        slab_bytes=stats.slab_bytes,
        slabs_free=stats.slabs_free,
        models=[model.name for model in stats.models],
    )


def _tier_stats(operations: Operations, tier: Tier) -> TierStats:
    load, use = tier.load(), operations.metrics.requests.prefix_use[tier.number]
    return TierStats(
        tier=tier.number,
        model=tier.model,
        core=tier.core_name,
        healthy=load.healthy,
        running=load.running,
        waiting=load.waiting,
        predicted_wait_seconds=load.predicted_wait_seconds,
        prompt_tokens=use.prompt_tokens,
        cached_tokens=use.cached_tokens,
        prefix_hit_rate=use.cached_tokens / use.prompt_tokens if use.prompt_tokens else None,
        replicas=tier.replicas(),
    )
