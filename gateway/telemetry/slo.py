"""The state of service levels: green, amber or red for each tier, with the figures behind it (SPEC OB-01 to OB-06)."""

from typing import Literal

import msgspec

from gateway.base.inference_request import SLO_CLASSES
from gateway.telemetry.service_levels import STAGES, LevelsByTier, Sketch, Stage, TierServiceLevels, levels_together

# Bounds of the buckets of times.
SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
State = Literal["green", "amber", "red", "unknown"]
STATE_NUMBERS: dict[State, int] = {"green": 0, "amber": 1, "red": 2, "unknown": -1}
_WORST_FIRST: tuple[State, ...] = ("red", "amber", "green")

LEAST_REQUESTS = 20
"""Fewer requests than this give no state."""

# SPEC GW-02, for an answer of 100 tokens.
BUDGETS_MS: dict[Stage, float] = {"route": 2.0, "schedule": 3.0, "prefill": 25.0, "decode": 65.0, "stream": 5.0}


class Objective(msgspec.Struct, frozen=True, kw_only=True):
    """A figure is green up to (or, `higher_is_better`, from) `green`, red beyond `red`, and amber in between."""

    name: str
    green: float
    red: float
    higher_is_better: bool = False

    def state(self, value: float | None) -> State:
        """Return the state of a figure; unknown without one."""
        if value is None:
            return "unknown"
        sign = -1 if self.higher_is_better else 1
        if sign * value <= sign * self.green:
            return "green"
        return "red" if sign * value > sign * self.red else "amber"


# SPEC OB-01. The time to the first token is divided by the request's limit, so that one figure covers all.
TTFT = Objective(name="ttft_p95_of_target", green=1.0, red=2.0)
SPEED = Objective(name="tokens_per_second_p50", green=30.0, red=15.0, higher_is_better=True)
SPREAD = Objective(name="e2e_p99_over_p50", green=5.0, red=10.0)


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """An objective and its figure."""

    objective: Objective
    value: float | None
    state: State


class Quantiles(msgspec.Struct, frozen=True, kw_only=True):
    """Within one percent; None if there are no values."""

    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None
    p999: float | None


class StageLevel(msgspec.Struct, frozen=True, kw_only=True):
    """A stage of an answer in milliseconds, with its budget for an answer of 100 tokens."""

    stage: Stage
    budget_ms: float
    milliseconds: Quantiles


class ClassLevel(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of a class, and those whose first token came in time: within the class's `ttft_seconds`, or, where the
    request asked for no class, within its tier's objective if that is longer."""

    name: str
    ttft_seconds: float
    requests: int
    kept: int


class TierLevel(msgspec.Struct, frozen=True, kw_only=True):
    """One tier, or all."""

    tier: int | None
    model: str | None
    state: State
    """The worst of its checks."""
    requests: int
    failed: int
    checks: list[Check]
    ttft_seconds: Quantiles
    tokens_per_second: Quantiles
    e2e_seconds: Quantiles
    itl_p99_seconds: float | None
    """By the buckets of the histogram."""
    stages: list[StageLevel]
    classes: list[ClassLevel]


class SloReport(msgspec.Struct, frozen=True, kw_only=True):
    """The last `window_seconds`, of all gateway processes behind the port."""

    window_seconds: float
    overall: TierLevel
    requests_by_tier: dict[int, int]
    tiers: list[TierLevel]


def slo_report(figures: LevelsByTier, window_seconds: float, models: dict[int, str]) -> SloReport:
    """Return the report on the tiers of `models`, by number, with or without requests."""
    every = levels_together(figures)
    return SloReport(
        window_seconds=window_seconds,
        overall=tier_level(every, None, None),
        requests_by_tier={tier: figures[tier].requests if tier in figures else 0 for tier in models},
        tiers=[tier_level(figures.get(tier, TierServiceLevels()), tier, model) for tier, model in models.items()],
    )


def tier_level(figures: TierServiceLevels, tier: int | None, model: str | None) -> TierLevel:
    """Evaluate the figures of a tier."""
    e2e = quantiles(figures.e2e)
    spread = e2e.p99 / e2e.p50 if e2e.p50 and e2e.p99 is not None else None
    share = figures.ttft_share
    checks = [
        _check(TTFT, share, share.quantile(0.95)),
        _check(SPEED, figures.speed, figures.speed.quantile(0.5)),
        _check(SPREAD, figures.e2e, spread),
    ]
    states = {check.state for check in checks}
    return TierLevel(
        tier=tier,
        model=model,
        state=next((state for state in _WORST_FIRST if state in states), "unknown"),
        requests=figures.requests,
        failed=figures.failed,
        checks=checks,
        ttft_seconds=quantiles(figures.ttft),
        tokens_per_second=quantiles(figures.speed),
        e2e_seconds=e2e,
        itl_p99_seconds=bucket_quantile(figures.gaps, 0.99),
        stages=[_stage(name, figures.stages.get(name, Sketch())) for name in STAGES],
        classes=[
            ClassLevel(
                name=name,
                ttft_seconds=SLO_CLASSES[name].ttft_seconds,
                requests=count,
                kept=figures.kept.get(name, 0),
            )
            for name, count in sorted(figures.classes.items())
        ],
    )


def quantiles(sketch: Sketch, scale: float = 1.0) -> Quantiles:
    """Return mean and quantiles, times `scale`."""

    p50, p95, p99, p999 = (
        None if value is None else value * scale for value in sketch.quantiles((0.5, 0.95, 0.99, 0.999))
    )
    mean = None if sketch.mean is None else sketch.mean * scale
    return Quantiles(mean=mean, p50=p50, p95=p95, p99=p99, p999=p999)


def bucket_quantile(counts: dict[int, int], share: float) -> float | None:
    """As Prometheus's histogram_quantile: linear within a bucket, and the last bound for values beyond it."""
    rank = share * sum(counts.values())
    passed = 0
    for bucket in sorted(counts):
        if passed + counts[bucket] >= rank > 0:
            if bucket >= len(SECONDS):
                return SECONDS[-1]
            low = SECONDS[bucket - 1] if bucket else 0.0
            return low + (SECONDS[bucket] - low) * (rank - passed) / counts[bucket]
        passed += counts[bucket]
    return None


def _check(objective: Objective, sketch: Sketch, value: float | None) -> Check:
    is_known = sketch.total >= LEAST_REQUESTS
    return Check(objective=objective, value=value, state=objective.state(value) if is_known else "unknown")


def _stage(name: Stage, sketch: Sketch) -> StageLevel:
    return StageLevel(stage=name, budget_ms=BUDGETS_MS[name], milliseconds=quantiles(sketch, 1e3))
