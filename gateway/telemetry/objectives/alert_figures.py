"""The figures that alerts check, from the gateway's own measurements."""

from collections.abc import Collection, Iterable, Mapping

from gateway.telemetry.gpus import GpuReading
from gateway.telemetry.objectives.alert_rules import AlertInputs
from gateway.telemetry.objectives.service_levels import LevelsByTier, TierServiceLevels
from gateway.telemetry.objectives.slo import LEAST_REQUESTS
from inference_core.protocol import CoreStats
from tiers.tier import Tier


def alert_figures(
    levels: LevelsByTier,
    cores: Mapping[str, CoreStats],
    tiers: Collection[Tier],
    gpus: Iterable[GpuReading],
    retraining_days: float | None = None,
    key_cost_of_week: float | None = None,
) -> AlertInputs:
    """`levels` of the window; `cores` that answer, by name; `key_cost_of_week`: of `dearest_key`. A window with few
    requests raises no alert. `waiting` are sequences of the cores and requests at servers elsewhere."""
    queues = queues_elsewhere(tiers)
    in_cores = sum(model.waiting for stats in cores.values() for model in stats.models)
    every = TierServiceLevels()
    for one in levels.values():
        every.merge(one)
    enough = every.requests >= LEAST_REQUESTS
    readings = list(gpus)
    return {
        "ttft_p95_of_limit": max(
            (share.quantile(0.95) or 0.0 for share in every.ttft_shares.values() if share.total >= LEAST_REQUESTS),
            default=0.0,
        ),
        "waiting": in_cores + sum(queues.values()) if cores or queues else None,
        "error_share": every.failed / every.requests if enough else 0.0,
        "disputed_share": max(
            (one.disputed / one.requests for one in levels.values() if one.requests >= LEAST_REQUESTS), default=0.0
        ),
        "tiers_down": sum(not tier.load().healthy for tier in tiers),
        "below_target_share": every.below_target / every.requests if enough else 0.0,
        "cost_per_1k_tokens_usd": every.cost_usd / every.tokens * 1e3 if enough and every.tokens else 0.0,
        "key_cost_of_week": key_cost_of_week,
        "gpu_busy": _most(None if g.utilisation is None else g.utilisation / 100 for g in readings),
        "gpu_memory": _most(g.memory_share for g in readings),
        "gpu_throttled": _most(float(len(g.throttled_by)) for g in readings),
        "retraining_days": retraining_days,
    }


def queues_elsewhere(tiers: Iterable[Tier]) -> dict[str, int]:
    """Return the waiting requests of every server elsewhere; one that several tiers use is counted once."""
    found: dict[str, int] = {}
    for tier in tiers:
        for place, waiting in tier.queues().items():
            found[place] = max(waiting, found.get(place, 0))
    return found


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
