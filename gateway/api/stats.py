"""`GET /v1/admin/stats`: how tiers and models fare at this moment, for operators and dashboards."""

from typing import Any

import msgspec
from litestar import get
from litestar.response import Response

from gateway.api.operations import describe
from gateway.parts import HttpRequest, Parts, parts_of
from inference_core.protocol import ModelStats
from tiers.tier import Tier


class TierStats(msgspec.Struct, frozen=True, kw_only=True):
    """A tier's queue as routing sees it, and what the prefix cache saved of its answers' prompts since start.

    `prefix_hit_rate`: cached over prompt tokens, None before the first answer.
    """

    tier: int
    model: str
    healthy: bool
    running: int
    waiting: int
    predicted_wait_seconds: float
    prompt_tokens: int
    cached_tokens: int
    prefix_hit_rate: float | None


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """Tiers by number; the models of the core behind them."""

    tiers: list[TierStats]
    models: list[ModelStats]


@get("/stats", operation_class=describe(None, Stats), summary="Show queues, caches and steps")
async def show_stats(request: HttpRequest) -> Response[Any]:
    """Tiers with their load and prefix hit rate; models with their steps, blocks, knobs and tuning."""
    parts = parts_of(request)
    tiers = [_tier_stats(parts, tier) for tier in parts.routing.tiers.values()]
    models = await parts.core_knobs.models() if parts.core_knobs.has_core else []
    return Response(Stats(tiers=tiers, models=models), media_type="application/json")


def _tier_stats(parts: Parts, tier: Tier) -> TierStats:
    load, use = tier.load(), parts.metrics.prefix_use[tier.number]
    return TierStats(
        tier=tier.number,
        model=tier.model,
        healthy=load.healthy,
        running=load.running,
        waiting=load.waiting,
        predicted_wait_seconds=load.predicted_wait_seconds,
        prompt_tokens=use.prompt_tokens,
        cached_tokens=use.cached_tokens,
        prefix_hit_rate=use.cached_tokens / use.prompt_tokens if use.prompt_tokens else None,
    )
