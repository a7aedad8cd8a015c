"""The gateway's current figures as plain data: by tier, by core, and against the alert thresholds."""

from collections.abc import Iterable, Mapping

import msgspec

from gateway.telemetry.objectives.alert_rules import RULES, AlertInputs, Severity
from gateway.telemetry.objectives.service_levels import LevelsByTier, TierServiceLevels
from gateway.telemetry.objectives.slo import Check, Quantiles, State, bucket_quantile, quantiles, tier_level
from inference_core.protocol import CoreStats, ModelStats
from quality.estimates.upgrade_rate import UpgradeRate
from tiers.tier import Tier


class TierNow(msgspec.Struct, frozen=True, kw_only=True):
    """A tier, or all of them (`tier` None), over the window; queue and memory at this moment.

    `share` of the requests; `below_target`: answers below their quality target because a tier was down; `itl_seconds`:
    inter-token latency, by the buckets of the histogram; `spread`: p99 over p50 of whole answers; `saving`: 1 - cost /
    cost at the strongest tier; `kv_share`: used share of the model's blocks.
    """

    tier: int | None
    model: str | None
    core: str | None
    state: State
    healthy: bool
    requests: int
    share: float | None
    requests_per_second: float
    failed: int
    below_target: int
    ttft_seconds: Quantiles
    itl_seconds: Quantiles
    e2e_seconds: Quantiles
    spread: float | None
    tokens_per_second_p50: float | None
    checks: list[Check]
    cost_usd: float
    cost_per_1k_tokens_usd: float | None
    saving: float | None
    running: int
    waiting: int
    predicted_wait_seconds: float
    kv_share: float | None
    prefix_hit_rate: float | None


class CoreNow(msgspec.Struct, frozen=True, kw_only=True):
    """A core's arena, or why the core does not answer."""

    name: str
    problem: str | None
    arena_bytes: int = 0
    used_bytes: int = 0


class AlertNow(msgspec.Struct, frozen=True, kw_only=True):
    """A `figure` (one of `alert_figures`) that is above its limit since `since` (epoch seconds)."""

    name: str
    figure: str
    severity: Severity
    summary: str
    value: float
    above: float
    since: float


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A sample of the history; rates and quantiles cover the window that ended `at` (epoch seconds)."""

    at: float
    requests_per_second: dict[int, float]
    ttft_p50: float | None
    ttft_p95: float | None
    ttft_p99: float | None
    waiting: int


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """Everything on the overview page. Windows end `at` (epoch seconds); `history` is oldest first.

    `upgrade`: share of the last verified answers that were worse than the strongest tier's, as of the last sample; None
    if unknown. `refused`: requests refused in the last hour, as of the last sample; None if unknown.
    """

    at: float
    window_seconds: float
    overall: TierNow
    tiers: list[TierNow]
    cores: list[CoreNow]
    upgrade: UpgradeRate | None
    refused: int | None
    alerts: list[AlertNow]
    history: list[Point]


def tiers_now(
    figures: LevelsByTier, seconds: float, tiers: Iterable[Tier], cores: Mapping[str, CoreStats]
) -> tuple[TierNow, list[TierNow]]:
    """Return all tiers as one, then each. `figures` cover the last `seconds`; `cores` are those that answered."""
    every = TierServiceLevels()
    for one in figures.values():
        every.merge(one)
    models = {(name, model.name): model for name, stats in cores.items() for model in stats.models}
    shown = [
        _tier(figures.get(tier.number, TierServiceLevels()), seconds, every.requests, tier, models)
        for tier in sorted(tiers, key=lambda tier: tier.number)
    ]
    whole = _tier(every, seconds, every.requests, None, {})
    whole = msgspec.structs.replace(
        whole,
        healthy=any(tier.healthy for tier in shown),
        running=sum(tier.running for tier in shown),
        waiting=sum(tier.waiting for tier in shown),
    )
    return whole, shown


def over_limit(figures: AlertInputs, since: dict[str, float], now: float) -> list[AlertNow]:
    """Return the alerts whose figures have exceeded their limits for long enough.

    `since`: when each rule began to exceed its limit, updated here. An unknown figure changes nothing.
    """
    found = []
    for rule in RULES:
        value = figures.get(rule.figure)
        if value is None:
            continue
        if value <= rule.above:
            since.pop(rule.name, None)
        elif now - since.setdefault(rule.name, now) >= rule.for_seconds:
            found.append(
                AlertNow(
                    name=rule.name,
                    figure=rule.figure,
                    severity=rule.severity,
                    summary=rule.summary,
                    value=value,
                    above=rule.above,
                    since=since[rule.name],
                )
            )
    return found


def _tier(
    figures: TierServiceLevels,
    seconds: float,
    of_all: int,
    tier: Tier | None,
    models: Mapping[tuple[str, str], ModelStats],
) -> TierNow:
    level = tier_level(figures, None if tier is None else tier.number, None if tier is None else tier.model)
    load = None if tier is None else tier.load()
    model = None if tier is None else models.get((tier.core_name or "", tier.model))
    return TierNow(
        tier=level.tier,
        model=level.model,
        core=None if tier is None else tier.core_name,
        state=level.state,
        healthy=load is not None and load.healthy,
        requests=figures.requests,
        share=_share(figures.requests, of_all),
        requests_per_second=figures.requests / seconds if seconds > 0 else 0.0,
        failed=figures.failed,
        below_target=figures.below_target,
        ttft_seconds=level.ttft_seconds,
        itl_seconds=_gaps(figures.gaps),
        e2e_seconds=level.e2e_seconds,
        spread=_share(level.e2e_seconds.p99, level.e2e_seconds.p50),
        tokens_per_second_p50=quantiles(figures.speed).p50,
        checks=level.checks,
        cost_usd=figures.cost_usd,
        cost_per_1k_tokens_usd=_share(figures.cost_usd * 1e3, figures.tokens),
        saving=None if not figures.baseline_usd else 1 - figures.cost_usd / figures.baseline_usd,
        running=0 if load is None else load.running,
        waiting=0 if load is None else load.waiting,
        predicted_wait_seconds=0.0 if load is None else load.predicted_wait_seconds,
        kv_share=None if model is None else _share(model.blocks_in_use, model.blocks_total),
        prefix_hit_rate=_share(figures.cached_tokens, figures.prompt_tokens),
    )


def _gaps(counts: dict[int, int]) -> Quantiles:
    p50, p95, p99, p999 = (bucket_quantile(counts, share) for share in (0.5, 0.95, 0.99, 0.999))
    return Quantiles(mean=None, p50=p50, p95=p95, p99=p99, p999=p999)


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None
