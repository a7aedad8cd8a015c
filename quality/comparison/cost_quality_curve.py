"""The cost-quality curve of a classifier version over quality targets, measured on full-ladder probes."""

import asyncio

import msgspec
import numpy as np
import numpy.typing as npt
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.decision import exchange_of
from classifier.policy.utility import highest_utility, reference_prices
from migrations.tables.quality import training_rows
from quality.comparison.paired_outcomes import ladder_outcomes_since, p_ok_of

NEWEST = 1000
THRESHOLDS = tuple(np.linspace(0.0, 1.0, 41).round(3).tolist())

Float = npt.NDArray[np.floating]


class CostQualityPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One quality target, the `threshold`: route each prompt to the tier of the highest utility where a strongest
    answer is worth 1 - `threshold`. `no_worse` is the share of answers no worse than the strongest tier's, `cost_share`
    the cost relative to that tier at reference prices."""

    threshold: float
    no_worse: float
    cost_share: float


class CostQualityCurve(msgspec.Struct, frozen=True, kw_only=True):
    """The curve on the newest `probes`; `points` is empty without probes."""

    probes: int
    points: list[CostQualityPoint]


class CostQualityCurves:
    """Computes the curve of a version and caches it until another probe is stored."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._drawn_of: tuple[str, tuple[int, ...], int | None] | None = None
        self._curve = CostQualityCurve(probes=0, points=[])

    async def of(self, version: str, table: Float) -> CostQualityCurve:
        """Return the curve of `version`, whose table by class is `table` [4, tiers - 1], on the newest probes."""
        newest = (
            select(training_rows.c.training_row_id)
            .where(training_rows.c.source == "probe")
            .order_by(training_rows.c.created_at.desc(), training_rows.c.training_row_id.desc())
            .limit(1)
        )
        async with self._engine.connect() as connection:
            drawn_of = version, table.shape, await connection.scalar(newest)
        if drawn_of != self._drawn_of:
            self._curve, self._drawn_of = await _curve_of(self._engine, table), drawn_of
        return self._curve


async def _curve_of(engine: AsyncEngine, table: Float) -> CostQualityCurve:
    tiers = table.shape[1] + 1
    probes = await ladder_outcomes_since(engine, 0.0, tiers, newest=NEWEST)
    if not len(probes.no_worse):
        return CostQualityCurve(probes=0, points=[])
    p_ok = p_ok_of(table, probes)
    points = await asyncio.to_thread(_drawn, p_ok, probes.no_worse, reference_prices(tiers))
    return CostQualityCurve(probes=len(p_ok), points=points)


def _drawn(p_ok: Float, no_worse: Float, prices: Float) -> list[CostQualityPoint]:
    each, points = np.arange(len(p_ok)), []
    for threshold in THRESHOLDS:
        chosen = highest_utility(p_ok, prices, exchange_of(threshold))
        points.append(
            CostQualityPoint(
                threshold=threshold,
                no_worse=round(float(no_worse[each, chosen].mean()), 6),
                cost_share=round(float((prices[chosen] / prices[-1]).mean()), 6),
            )
        )
    return points
