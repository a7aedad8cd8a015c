"""The alert rules, at two levels (SPEC OB-09, OB-10), and the figures that they check, from the gateway's own
measurements; deploy/prometheus/alerts.yaml has the same rules.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Literal

import msgspec

from gateway.telemetry.gpus import GpuReading
from gateway.telemetry.service_levels import LevelsByTier, levels_together
from gateway.telemetry.slo import LEAST_REQUESTS
from inference_core.protocol import CoreStats
from tiers.tier import Tier

Severity = Literal["warning", "critical"]
Figure = Literal[
    "ttft_p95_of_limit",
    "waiting",
    "error_share",
    "disputed_share",
    "tiers_down",
    "below_target_share",
    "cost_per_1k_tokens_usd",
    "key_cost_of_week",
    "gpu_busy",
    "gpu_memory",
    "gpu_throttled",
    "retraining_days",
]
AlertInputs = Mapping[Figure, float | None]

# The alert's limit; two times of the weekly schedule.
RETRAINING_DAYS = 14


class AlertRule(msgspec.Struct, frozen=True, kw_only=True):
    """Fires once `figure` has been above `above` for `for_seconds`."""

    name: str
    severity: Severity
    figure: Figure
    above: float
    for_seconds: float
    summary: str


RULES: tuple[AlertRule, ...] = (
    AlertRule(name="AioTtftHigh", severity="warning", figure="ttft_p95_of_limit", above=0.8, for_seconds=60,
              summary="the p95 time to first token of a class is above 80% of its limit"),
    AlertRule(name="AioTtftVeryHigh", severity="critical", figure="ttft_p95_of_limit", above=1.0, for_seconds=60,
              summary="the p95 time to first token of a class is above its limit"),
    AlertRule(name="AioQueueLong", severity="warning", figure="waiting", above=500, for_seconds=30,
              summary="more than 500 sequences are queued"),
    AlertRule(name="AioQueueVeryLong", severity="critical", figure="waiting", above=1000, for_seconds=30,
              summary="more than 1,000 sequences are queued"),
    AlertRule(name="AioErrors", severity="warning", figure="error_share", above=0.01, for_seconds=60,
              summary="more than 1% of the requests fail with server errors"),
    AlertRule(name="AioUsageDisputed", severity="warning", figure="disputed_share", above=0.05, for_seconds=60,
              summary="a server reports tokens that cannot be for more than 5% of a tier's answers"),
    AlertRule(name="AioTierDown", severity="warning", figure="tiers_down", above=0, for_seconds=60,
              summary="a tier takes no requests; other tiers answer"),
    AlertRule(name="AioBelowTarget", severity="critical", figure="below_target_share", above=0.05, for_seconds=60,
              summary="more than 5% of the answers are below their quality target because a tier is down"),
    AlertRule(name="AioCostHigh", severity="warning", figure="cost_per_1k_tokens_usd", above=0.12, for_seconds=300,
              summary="a thousand tokens cost more than $0.12"),
    AlertRule(name="AioKeyCostJump", severity="warning", figure="key_cost_of_week", above=3, for_seconds=60,
              summary="a key's requests cost more than three times those of its own week"),
    AlertRule(name="AioGpuBusy", severity="warning", figure="gpu_busy", above=0.95, for_seconds=30,
              summary="a GPU is more than 95% busy"),
    AlertRule(name="AioGpuMemoryFull", severity="critical", figure="gpu_memory", above=0.98, for_seconds=30,
              summary="a GPU has less than 2% of its memory left; the next allocation may fail"),
    AlertRule(name="AioGpuThrottled", severity="warning", figure="gpu_throttled", above=0, for_seconds=60,
              summary="a GPU is throttled by heat or power"),
    AlertRule(name="AioRetrainingOverdue", severity="warning", figure="retraining_days", above=RETRAINING_DAYS,
              for_seconds=60, summary="no successful retraining for 14 days"),
)  # fmt: skip
"""The thresholds are those of the sources, but a key's cost. Their 80 and 100 ms to the first token are those of the
class `chat`: 80% of its limit, and the limit; other classes and slower tiers are held to the same shares of their own
limits."""


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
    every = levels_together(levels)
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
            (tier.disputed / tier.requests for tier in levels.values() if tier.requests >= LEAST_REQUESTS),
            default=0.0,
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
    waiting_by_server: dict[str, int] = {}
    for tier in tiers:
        for server, waiting in tier.queues().items():
            waiting_by_server[server] = max(waiting, waiting_by_server.get(server, 0))
    return waiting_by_server


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
